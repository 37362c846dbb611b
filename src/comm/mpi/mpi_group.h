// The group of comm.backend = mpi: ranks of any machines that do collectives through an MPI library.
//
// How a collective goes. A rank posts: eight words of what it calls (kind, operator, dtype, counts, ...) go into an
// MPI_Iallreduce of maxima on a communicator of their own, which is the same for every call, so that calls that differ
// are found rather than confused. Data is sent with the call, but received once the words agree: a library may write
// past the end of a receive that is shorter than what comes (Open MPI 4.1 does), and end the process where its own
// collectives meet others. It goes one of three ways.
//   exchanged      all_gather and all_to_all: a message for each run of elements that lies together and each peer, so
//                  nothing is packed, and any count is possible.
//   summed         numbers are summed on this side, in rank order, so that the bits are those of comm.backend = shm and
//                  do not depend on the library: each rank gets its block of every rank's input, sums it, and for
//                  all_reduce and reduce sends it on. Small ones are sent whole, and each rank sums all of it.
//   library        broadcast, gather, scatter, and all_reduce and reduce of many integers, whose sum is the same in any
//                  order: the library's own collectives, once the words agree.
//
// There is no helper thread: requests move while a rank is in wait() or progress(). Waiting spins for 20 us at most,
// then looks with growing pauses of up to 200 us; now and then it looks at the processes of the machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/mpi/mpi_world.h"
#include "comm/mpi/table.h"

namespace trireme::comm {

class MpiOperation final : public Operation {
 public:
  using Operation::Operation;

 private:
  friend class MpiGroup;
  enum class Stage {
    waiting,  // nothing is posted but the words
    first,    // blocks are on their way: the whole call, or what is summed
    second,   // results are on their way
    moved,    // the result is there; peers' words or an emulated link may not be
  };
  /// What all ranks compare: the maxima of a value and of its complement are each other's complement when it is the
  /// same everywhere.
  struct Words {
    uint64_t packed, not_packed, count, not_count, detail, not_detail;
    uint64_t posted;     // nanoseconds, for an emulated link
    uint64_t exchanged;  // elements that a rank gives to others, or gets
  };
  /// Goes before each message.
  struct Header {
    uint64_t number = 0, dtype = 0;
    int64_t count = 0, posted = 0;
  };

  Stage stage_ = Stage::waiting;
  bool agreed_ = false;
  Words mine_{}, all_{};
  MpiRequest agreement_;
  std::vector<MpiRequest> requests_;  // of the present stage
  size_t done_ = 0;                   // of them, from the first on
  /// What is received once it is known that calls agree.
  struct Expected {
    void* data;
    int64_t count, width, from;
    int tag;
  };
  std::vector<Expected> expected_;
  std::string fault_;  // what MPI said of the data, until it is known whether calls agree
  std::unique_ptr<std::byte[]> scratch_;
  int64_t stride_ = 0;                 // elements of the scratch for each rank
  std::list<std::vector<int>> ints_;   // counts and starts that the library reads until the end
  std::vector<int64_t> gives_, gets_;  // uneven all_to_all: what ranks say that they give to this one
  Header header_;
};

class MpiGroup final : public Group {
 public:
  /// All members make it, in the same order as other groups that they are in.
  MpiGroup(std::shared_ptr<MpiWorld> world, GroupOptions options);
  ~MpiGroup() override;

  std::shared_ptr<Operation> post(Call call) override;
  using Group::wait;
  void wait(Operation& operation, std::chrono::milliseconds timeout) override;
  void progress() override;
  std::shared_ptr<Group> subgroup(GroupOptions options) override;

  bool shares_memory() const override { return false; }
  Memory allocate(std::string_view name, int64_t each, bool one_for_all) override;
  bool is_once(const void*) const override { return false; }

  void abort(const std::string& message, bool with_record = true) noexcept override;

 private:
  using Stage = MpiOperation::Stage;
  /// A range of elements of every rank's side of a sum: [first, first + length) of a block.
  struct Range {
    int64_t block = 0, first = 0, length = 0;
  };

  uint64_t next_sequence() const override { return sequence_ + 1; }
  [[noreturn]] void refuse_numbers(const std::string& text) override;

  // mpi_group.cpp: posting, waiting, and telling what went wrong
  bool advance();
  bool agree(MpiOperation& operation);
  void start_agreement(MpiOperation& operation);
  bool complete(MpiOperation& operation);
  bool test_all(MpiOperation& operation);
  void broken(MpiOperation& operation, std::string_view what, int code);
  Nanoseconds until_release() const;
  void check_failure(const std::function<std::string()>& waiting_for);
  void look_at_peers(const MpiOperation& operation, Nanoseconds elapsed, Nanoseconds deadline);
  std::vector<int64_t> missing_ranks(const MpiOperation& operation) const;
  std::string late_in_words(const MpiOperation& operation) const;
  std::string in_full(const MpiOperation& operation) const;
  [[noreturn]] void tell_difference(MpiOperation& operation);
  [[noreturn]] void fail(const std::string& message);
  void record_failure(std::string_view message);
  const MpiOperation& oldest(const MpiOperation& operation) const;

  // mpi_ways.cpp: how collectives get done
  void begin(MpiOperation& operation);
  bool step(MpiOperation& operation);
  void begin_all_gather(MpiOperation& operation);
  void begin_gather(MpiOperation& operation);
  std::pair<const int*, const int*> ints_of(MpiOperation& operation, const Layout& layout, int64_t tensor);
  void begin_scatter(MpiOperation& operation);
  void begin_broadcast(MpiOperation& operation);
  void begin_integers(MpiOperation& operation);
  void begin_sum(MpiOperation& operation);
  void begin_exchange(MpiOperation& operation);
  void exchange_blocks(MpiOperation& operation);
  void check_exchange(MpiOperation& operation);
  bool summed_whole(const MpiOperation& operation) const;
  bool summed_by_library(const MpiOperation& operation) const;
  bool done_by_library(const MpiOperation& operation) const;
  Range share_of(const MpiOperation& operation, int64_t rank) const;
  void sum_whole(MpiOperation& operation);
  void sum_share(MpiOperation& operation);
  void spread_sum(MpiOperation& operation);
  void send(MpiOperation& operation, const void* data, int64_t count, int64_t width, int64_t to, int tag);
  void post_receives(MpiOperation& operation);
  void receive(MpiOperation& operation, void* data, int64_t count, int64_t width, int64_t from, int tag);
  template <typename Start>
  void request(MpiOperation& operation, std::string_view what, const Start& start);
  int tag_of(const MpiOperation& operation, int stage) const;
  bool fits(const Layout& layout, int64_t tensor) const;

  // mpi_messages.cpp
  void post_message(const std::shared_ptr<MpiOperation>& operation);
  bool advance_messages();
  bool step_receive(MpiOperation& operation);

  std::shared_ptr<MpiWorld> world_;
  const MpiTable& mpi_;
  MpiComm data_, words_;
  uint64_t id_ = 0;  // of this group, the same on all members
  Nanoseconds spin_ = 0;

  uint64_t sequence_ = 0;
  std::deque<std::shared_ptr<MpiOperation>> under_way_;  // collectives, in order
  struct Peer {
    std::deque<std::shared_ptr<MpiOperation>> sends, receives;
    uint64_t send_number = 0, recv_number = 0;
    EmulatedLink incoming;
  };
  std::vector<Peer> peers_;
  int64_t messages_under_way_ = 0;
  bool told_ = false;        // of the present wait: that it is long
  bool told_peers_ = false;  // the same, to the peers
};

}  // namespace trireme::comm
