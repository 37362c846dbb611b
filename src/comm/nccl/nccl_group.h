// The group of comm.backend = nccl: ranks with a GPU each, on one or several machines, that do collectives through
// NCCL.
//
// How a collective goes. A channel is a NCCL communicator and a stream of its own, on which calls follow one another;
// the group has one for its collectives, and one for each ordered pair of ranks that exchanges messages. A call is a
// list of steps, each of which puts something on the stream:
//   words       five numbers of what is called (kind, operator, dtype, counts, ...) are gathered from all ranks, and
//   come
//               back to the host. This is the same for every call, so calls that differ are found rather than confused:
//               the data, which is right behind, may then never end, and the communicator is aborted.
//   moved       all_gather, all_to_all, gather, scatter: one NCCL group of sends and receives, so nothing is packed.
//               broadcast, and all_gather of one tensor in equal parts, are the library's own.
//   summed      numbers are summed on this side, in rank order, so that the bits are those of the other backends: bf16
//   and
//               f16 in float, rounded once. (NCCL adds in the order of its rings and trees, and rounds bf16 at each
//               hop.) Each rank gets its block of every rank's input, sums it, and for all_reduce and reduce sends it
//               on. all_reduce and reduce of integers, whose sum is the same in any order, are the library's own.
// The stream waits for what the caller's stream has been given when the call is posted. Nothing here waits for a peer:
// with communicators that do not block a step may be in progress, and the next one is put on the stream once it is not.
//
// wait() looks at an event, so what the host does next, and what it gives to any stream, comes after the result. It
// blocks the host, not the device: what has been given to the device before goes on. That is what lets every wait have
// a deadline.
//
// Memory of the host (numbers, checksums, small tensors) may be given as well; it goes by way of the device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/nccl/nccl_world.h"

namespace trireme::comm {

class NcclOperation final : public Operation {
 public:
  using Operation::Operation;

 private:
  friend class NcclGroup;
  /// What all ranks compare: the first three. The rest tells what they call.
  struct Words {
    uint64_t packed = 0, count = 0, detail = 0, shown = 0, shown_count = 0;
  };
  /// Memory of the host that goes by way of the device's.
  struct Staged {
    void* host = nullptr;
    std::shared_ptr<std::byte> device;
    NcclWorld::Pinned pinned;
    int64_t bytes = 0;
    bool goes = false, comes_back = false;
  };

  std::vector<std::function<void()>> steps_;
  size_t next_ = 0;  // the first that is not on the stream
  int64_t posted_ = 0;
  void* given_ = nullptr;     // event: what the caller's stream had when the call was posted
  void* compared_ = nullptr;  // event: the words have come
  void* counted_ = nullptr;   // event: of an uneven all_to_all, what each rank gives has come
  void* ended_ = nullptr;     // event: all of it
  bool agreed_ = false;
  bool counts_agree_ = false;
  bool told_peers_ = false;
  Words mine_;
  NcclWorld::Pinned words_, counts_;
  std::vector<std::shared_ptr<std::byte>> scratch_;
  std::vector<Staged> staged_;
  std::byte* sums_ = nullptr;  // what peers send to be summed
  int64_t stride_ = 0;         // elements of it for each rank
};

class NcclGroup final : public Group {
 public:
  /// All members make it, in the same order as other groups that they are in.
  NcclGroup(std::shared_ptr<NcclWorld> world, GroupOptions options);
  ~NcclGroup() override;

  std::shared_ptr<Operation> post(Call call) override;
  using Group::wait;
  void wait(Operation& operation, std::chrono::milliseconds timeout) override;
  void progress() override;
  std::shared_ptr<Group> subgroup(GroupOptions options) override;

  bool reaches_devices() const override { return true; }
  bool shares_memory() const override { return false; }
  Memory allocate(std::string_view name, int64_t each, bool one_for_all) override;
  bool is_once(const void*) const override { return false; }

  void abort(const std::string& message, bool with_record = true) noexcept override;

 private:
  using Words = NcclOperation::Words;
  /// A range of elements of every rank's side of a sum: [first, first + length) of a block.
  struct Range {
    int64_t block = 0, first = 0, length = 0;
  };
  struct Channel {
    std::string key;             // on the board
    std::vector<int64_t> ranks;  // of the group, in the order of the communicator's
    int64_t index = 0;           // of this rank among them
    void* comm = nullptr;
    bool busy = false;  // the library's last call is in progress
    uint64_t sequence = 0;
    std::deque<std::shared_ptr<NcclOperation>> under_way;
    size_t launched = 0;                   // of them, all steps of which are on the stream
    std::unique_ptr<DeviceStream> stream;  // ends before the memory that is used on it
  };

  uint64_t next_sequence() const override { return channels_.front().sequence + 1; }
  [[noreturn]] void refuse_numbers(const std::string& text) override;

  // nccl_group.cpp: posting, waiting, and telling what went wrong
  Channel& channel_of(const Call& call);
  Channel make_channel(std::string key, std::vector<int64_t> ranks) const;
  bool connect(Channel& channel);
  void drop(Channel& channel, bool abort) noexcept;
  bool advance();
  bool advance(Channel& channel);
  bool launch(Channel& channel);
  bool settled(Channel& channel);
  bool compare(Channel& channel, NcclOperation& operation);
  void check_counts(NcclOperation& operation);
  bool has_come(void* event) const;
  void complete(NcclOperation& operation);
  [[noreturn]] void tell_broken(Channel& channel, const std::string& message);
  void check_failure(const std::function<std::string()>& waiting_for);
  void look_at_peers(Channel& channel, const std::string& what, Nanoseconds elapsed, Nanoseconds deadline);
  void tell_waiting(Channel& channel);
  std::vector<int64_t> missing_ranks(const Channel& channel);
  std::string late_in_words(const Channel& channel);
  [[noreturn]] void fail(const std::string& message);
  void record_failure(std::string_view message);
  void end_channels() noexcept;

  // nccl_ways.cpp: how calls get done
  void plan(Channel& channel, const std::shared_ptr<NcclOperation>& operation);
  void stage(Channel& channel, NcclOperation& operation);
  void plan_words(Channel& channel, NcclOperation& operation);
  void plan_counts(Channel& channel, NcclOperation& operation);
  void plan_sum(Channel& channel, NcclOperation& operation);
  void all_gather(Channel& channel, NcclOperation& operation);
  void gather(Channel& channel, NcclOperation& operation);
  void scatter(Channel& channel, NcclOperation& operation);
  void broadcast(Channel& channel, NcclOperation& operation);
  void all_to_all(Channel& channel, NcclOperation& operation);
  void message(Channel& channel, NcclOperation& operation);
  void reduce_integers(Channel& channel, NcclOperation& operation);
  void collect_shares(Channel& channel, NcclOperation& operation);
  void sum_shares(Channel& channel, NcclOperation& operation);
  void spread_shares(Channel& channel, NcclOperation& operation);
  void collect_whole(Channel& channel, NcclOperation& operation);
  void sum_whole(Channel& channel, NcclOperation& operation);
  bool summed_whole(const NcclOperation& operation) const;
  Range share_of(const NcclOperation& operation, int64_t rank) const;
  std::byte* scratch(Channel& channel, NcclOperation& operation, int64_t bytes);
  void copy(Channel& channel, void* to, const void* from, int64_t bytes);
  void send(Channel& channel, const void* data, int64_t bytes, int64_t to);
  void receive(Channel& channel, void* data, int64_t bytes, int64_t from);
  template <typename Body>
  void together(Channel& channel, const Body& body);
  void did(Channel& channel, int code, std::string_view what);

  std::shared_ptr<NcclWorld> world_;
  const NcclTable& nccl_;
  std::string key_;                                        // of this group on the board
  std::deque<Channel> channels_;                           // the first: of collectives
  std::map<std::pair<int64_t, int64_t>, size_t> of_pair_;  // (from, to) -> channel
  bool told_ = false;                                      // of the present wait: that it is long
};

}  // namespace trireme::comm
