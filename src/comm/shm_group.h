// The group of comm.backend = shm: ranks of one machine that do collectives through the arena.
//
// How a collective goes. A rank posts: it writes into its ring of 64 entries what it calls, and where its data is. Once
// all ranks have posted number s, each compares the calls, and then one of four ways is taken, the same on all ranks.
// A list of tensors, and blocks of unequal size, go through the same ways (layout.h).
//   inlined        up to 4 KiB: the data lies in the entry; every rank computes its own result. One cache miss, no
//                  second meeting: an entry is written again only after 64 more calls, when all have read it.
//   shared         inputs and outputs lie in the arena: the work is cut into pieces, each with an owner; who is done
//   with
//                  its own takes those that a peer has not begun, and writes into the peer's output. So a call ends
//                  for whoever waits once all have posted, even while a peer computes. A sum over all ranks is dealt
//                  out: each piece is summed once, in rank order, and written into every output.
//   pull           only the inputs lie in the arena: every rank reads its peers' inputs, then says so.
//   staged         the rest: every rank copies its input piece by piece into its slots in the arena, and takes the
//                  result from all slots.
// Point-to-point messages go through a channel of slots for each ordered pair, or directly when the data is in the
// arena.
//
// Waiting spins for 20 us at most, then sleeps on a futex; every half second it looks at the peers' processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/arena.h"
#include "comm/control.h"
#include "comm/group.h"
#include "comm/process_state.h"

namespace trireme::comm {

class ShmOperation final : public Operation {
 public:
  using Operation::Operation;

 private:
  friend class ShmGroup;
  enum class Way { inlined, shared, pull, staged };

  bool arrived_ = false;  // all ranks have posted, and their calls agree
  bool worked_ = false;   // nothing is left to do for this rank, though peers may be at it
  bool moved_ = false;    // the result is there; an emulated link may still be busy with it
  int64_t seen_ = 0;      // ranks below this one have posted
  Way way_ = Way::inlined;
  int64_t piece_ = 0;  // elements of a piece
  int64_t pieces_ = 0;
  uint64_t base_ = 0;            // staged pieces, or messages' slots, before this call
  int64_t put_ = 0;              // pieces that this rank has copied in
  int64_t taken_ = 0;            // pieces that this rank has taken
  bool direct_ = false;          // a message that the receiver reads where it lies
  std::vector<int64_t> starts_;  // uneven all_to_all, once all have come: where this rank's block starts at each rank
};

class ShmGroup final : public Group {
 public:
  /// A group of one rank: every call is complete when it is posted.
  explicit ShmGroup(std::string axis, std::shared_ptr<const GroupSettings> settings = nullptr);
  /// Collective in effect, without waiting: all members make it with the same axis.
  ShmGroup(std::shared_ptr<Arena> arena, GroupOptions options);
  ~ShmGroup() override;

  const std::shared_ptr<Arena>& arena() const { return arena_; }  ///< null at size 1

  /// Waits only where 64 earlier calls are still under way.
  std::shared_ptr<Operation> post(Call call) override;
  using Group::wait;
  void wait(Operation& operation, std::chrono::milliseconds timeout) override;
  void progress() override;
  std::shared_ptr<Group> subgroup(GroupOptions options) override;

  bool shares_memory() const override { return size_ > 1; }
  Memory allocate(std::string_view name, int64_t each, bool one_for_all) override;
  bool is_once(const void* memory) const override;
  /// Memory in the arena, zero at first; the same on all ranks.
  std::byte* shared_alloc(std::string_view name, int64_t bytes);
  /// Says that [memory, memory + bytes) is one for all ranks (Sharing::once), and asks for it.
  void note_once(const std::byte* memory, int64_t bytes) { once_[memory] = bytes; }
  /// Blocks until `ready` holds, under the deadline, while calls under way go on. `waiting_for` names what and
  /// `missing` the ranks that did not come, for the error. Whoever makes it hold calls notify().
  void block_until(const std::function<bool()>& ready, const std::function<std::string()>& waiting_for,
                   const std::function<std::vector<int64_t>()>& missing);
  void notify();

  void abort(const std::string& message, bool with_record = true) noexcept override;

 private:
  // post.cpp
  void note_last(const ShmOperation& operation, Nanoseconds posted);
  void post_collective(ShmOperation& operation);
  void write_table(const ShmOperation& operation, Entry& entry) const;
  uint64_t next_sequence() const override { return sequence_ + 1; }
  [[noreturn]] void refuse_numbers(const std::string& text) override;

  // shm_group.cpp: waiting
  void await_ring(uint64_t sequence);
  void complete(ShmOperation& operation);
  bool release(ShmOperation& operation);
  Nanoseconds until_release() const;
  bool held_by_link() const;
  template <typename Ready, typename What, typename Missing>
  void block(const Ready& ready, const What& waiting_for, const Missing& missing, std::chrono::milliseconds timeout);
  bool advance();
  Entry& entry(int64_t rank, uint64_t sequence) const {
    return ranks_[rank].ring[sequence % static_cast<uint64_t>(ring_entries)];
  }

  // ways.cpp: how collectives get done; each returns whether anything moved
  bool step(ShmOperation& operation);
  bool all_posted(ShmOperation& operation);
  void choose_way(ShmOperation& operation);
  bool inputs_in_arena(const ShmOperation& operation) const;
  bool outputs_in_arena(const ShmOperation& operation) const;
  bool has_output(const ShmOperation& operation, int64_t rank) const;
  void check_own_memory(const ShmOperation& operation);
  void check_one_memory(const ShmOperation& operation);
  bool step_shared(ShmOperation& operation);
  bool step_pull(ShmOperation& operation);
  bool step_staged(ShmOperation& operation);
  void put(const ShmOperation& operation, int64_t first, int64_t length, std::byte* to, int64_t stride) const;
  /// Where rank r's elements for this rank are: from `flat_[r]` on, or in its tensors in the arena.
  enum class Source { flat, tensors };
  void take(const ShmOperation& operation, int64_t first, int64_t length, Source source, int64_t target);
  void take_once(const ShmOperation& operation, int64_t first, int64_t length, int64_t owner);
  void do_piece(const ShmOperation& operation, int64_t owner, int64_t piece);
  int64_t pieces_of(const ShmOperation& operation, int64_t owner) const;
  std::byte* input_of(const ShmOperation& operation, int64_t rank, int64_t tensor) const;
  std::byte* output_of(const ShmOperation& operation, int64_t rank, int64_t tensor) const;
  int64_t offset_in_arena(const void* memory, int64_t bytes) const;
  int64_t output_offset(const ShmOperation& operation, int64_t tensor) const;

  // agreement.cpp: comparing the calls, and what follows from all of them
  void check_agreement(ShmOperation& operation);
  void read_exchange(ShmOperation& operation);
  std::string describe_entry(const Entry& entry) const;

  // messages.cpp: send and recv
  bool advance_messages();
  bool step_send(ShmOperation& operation, Channel& channel, int64_t peer);
  bool step_recv(ShmOperation& operation, Channel& channel, int64_t peer);
  Channel& channel(int64_t from, int64_t to);

  // failure.cpp: telling what went wrong
  void check_peers(const std::vector<int64_t>& missing, const std::function<std::string()>& waiting_for,
                   Nanoseconds elapsed, Nanoseconds deadline);
  void check_poison(const std::function<std::string()>& waiting_for);
  void record_failure(std::string_view message);
  std::string late_in_words(const std::vector<int64_t>& missing) const;
  std::vector<int64_t> waiting_chain(int64_t rank) const;
  ProcessState state_of_rank(int64_t rank) const;
  [[noreturn]] void fail(int64_t culprit, const std::string& message);
  std::vector<int64_t> missing_ranks(const ShmOperation& operation) const;
  std::string whereabouts(int64_t rank) const;
  std::string host_of(int64_t rank) const;

  std::shared_ptr<Arena> arena_;
  Nanoseconds spin_ = 0;

  GroupControl* control_ = nullptr;
  RankControl* ranks_ = nullptr;
  Slots* slots_ = nullptr;
  std::vector<Channel*> channels_;  // [from]: its channels to all ranks; made when one is used
  std::string block_name_;          // stem of the group's named blocks in the arena

  uint64_t sequence_ = 0;   // of the last collective that was posted
  uint64_t ring_free_ = 0;  // all ranks have completed up to here, as far as this rank knows
  uint64_t staged_ = 0;     // staged pieces of all calls before the current one
  int64_t allocations_ = 0;
  std::map<const std::byte*, int64_t> once_;             // memory that is one for all ranks
  std::deque<std::shared_ptr<ShmOperation>> under_way_;  // collectives, in order
  struct Peer {
    std::deque<std::shared_ptr<ShmOperation>> sends, receives;
    uint64_t sent = 0, received = 0;            // slots used by complete messages
    uint64_t send_number = 0, recv_number = 0;  // messages posted
  };
  std::vector<Peer> peers_;
  int64_t messages_under_way_ = 0;
  std::vector<const std::byte*> flat_;  // scratch of take()

  std::vector<EmulatedLink> incoming_;  // of messages from each rank
  bool told_ = false;                   // of the present wait: that it is long
};

}  // namespace trireme::comm
