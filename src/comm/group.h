// A group: ranks of one machine that do collectives through the arena. The torch-free core under Communicator, whose
// contract (communicator.h) is this class's too.
//
// How a collective goes. A rank posts: it writes into its ring of 64 entries what it calls, and where its data is. Once
// all ranks have posted number s, each compares the calls, and then one of four ways is taken, the same on all ranks:
//   inlined        up to 4 KiB: the data lies in the entry; every rank computes its own result. One cache miss, no
//                  second meeting: an entry is written again only after 64 more calls, when all have read it.
//   direct reduce  all_reduce of buffers in the arena: the range is cut into pieces, dealt to the ranks; who is done
//                  with its own pieces takes those that a peer has not begun, so that a call ends once all have posted,
//                  even while a peer computes. A piece is summed in rank order and written into every rank's buffer.
//   direct pull    other calls whose inputs lie in the arena: every rank reads its peers' inputs, then says so.
//   staged         the rest: every rank copies its input piece by piece into its slots in the arena, and takes the
//                  result from all slots.
// Point-to-point messages go through a channel of slots for each ordered pair, or directly when the data is in the
// arena.
//
// Waiting spins for 20 us at most, then sleeps on a futex; every half second it looks at the peers' processes.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/arena.h"
#include "comm/call.h"
#include "comm/control.h"

namespace trireme::comm {

struct GroupOptions {
  std::string axis = "world";
  /// Arena ranks of the group's members, in the order of the group's ranks; empty: all ranks of the arena.
  std::vector<int64_t> members;
  int64_t rank = 0;  ///< of this process in the group
  std::chrono::milliseconds timeout{600'000};
};

/// A call under way. Its state is the group's own business.
class Operation {
 public:
  explicit Operation(Call what) : call(std::move(what)) {}

  Call call;
  uint64_t sequence = 0;
  bool done = false;

 private:
  friend class Group;
  enum class Way { inlined, direct_reduce, direct_pull, staged };

  int64_t element_bytes_ = 0;
  int64_t record_ = 0;    // place in the flight recorder
  bool arrived_ = false;  // all ranks have posted, and their calls agree
  bool worked_ = false;   // nothing is left to do for this rank, though peers may be at it
  int64_t seen_ = 0;      // ranks below this one have posted
  Way way_ = Way::inlined;
  int64_t piece_ = 0;  // elements of a piece
  int64_t pieces_ = 0;
  uint64_t base_ = 0;    // staged pieces, or messages' slots, before this call
  int64_t put_ = 0;      // pieces that this rank has copied in
  int64_t taken_ = 0;    // pieces that this rank has taken
  bool direct_ = false;  // a message that the receiver reads where it lies
};

class Group {
 public:
  /// A group of one rank: every call is complete when it is posted.
  explicit Group(std::string axis);
  /// Collective in effect, without waiting: all members make it with the same axis.
  Group(std::shared_ptr<Arena> arena, GroupOptions options);
  ~Group();

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  const std::string& axis() const { return axis_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }  ///< null at size 1

  /// Records the arrival; does not wait, unless 64 earlier calls are still under way. Throws InputError for a call that
  /// cannot be right, before any peer sees it.
  std::shared_ptr<Operation> post(Call call);
  void wait(Operation& operation) { wait(operation, timeout_); }
  /// With a deadline of its own. It ends the group as the group's own deadline does.
  void wait(Operation& operation, std::chrono::milliseconds timeout);
  /// progress(), then whether the operation is complete.
  bool test(Operation& operation);
  void progress();
  void run(Call call);  ///< post and wait

  /// Memory in the arena, zero at first; the same on all ranks.
  std::byte* shared_alloc(std::string_view name, int64_t bytes);
  /// Blocks until `ready` holds, under the deadline, while calls under way go on. `waiting_for` names what and
  /// `missing` the ranks that did not come, for the error. Whoever makes it hold calls notify().
  void block_until(const std::function<bool()>& ready, const std::function<std::string()>& waiting_for,
                   const std::function<std::vector<int64_t>()>& missing);
  void notify();

  void abort(const std::string& message, bool with_record = true) noexcept;
  std::string flight_record() const;

 private:
  using Nanoseconds = int64_t;
  struct Record {
    uint64_t packed = 0;
    uint64_t sequence = 0;
    int64_t count = 0;
    Nanoseconds posted = 0;
    Nanoseconds finished = 0;
  };

  // group.cpp: posting and waiting
  void check(const Call& call) const;
  void run_alone(const Call& call) const;
  void post_collective(Operation& operation);
  void await_ring(uint64_t sequence);
  void complete(Operation& operation);
  template <typename Ready, typename What, typename Missing>
  void block(const Ready& ready, const What& waiting_for, const Missing& missing, std::chrono::milliseconds timeout);
  bool advance();
  Entry& entry(int64_t rank, uint64_t sequence) const {
    return ranks_[rank].ring[sequence % static_cast<uint64_t>(ring_entries)];
  }

  // ways.cpp: how collectives get done; each returns whether anything moved
  bool step(Operation& operation);
  bool all_posted(Operation& operation);
  void check_agreement(const Operation& operation);
  void choose_way(Operation& operation);
  bool step_direct_reduce(Operation& operation);
  bool step_direct_pull(Operation& operation);
  bool step_staged(Operation& operation);
  void put(const Operation& operation, int64_t first, int64_t length, std::byte* to) const;
  void take(const Operation& operation, int64_t first, int64_t length, const std::vector<const std::byte*>& from,
            int64_t block_bytes);
  int64_t pieces_of(const Operation& operation, int64_t owner) const;

  // messages.cpp: send and recv
  bool advance_messages();
  bool step_send(Operation& operation, Channel& channel, int64_t peer);
  bool step_recv(Operation& operation, Channel& channel, int64_t peer);
  Channel& channel(int64_t from, int64_t to) const { return channels_[from * size_ + to]; }

  // failure.cpp: telling what went wrong
  void check_peers(const std::vector<int64_t>& missing, const std::function<std::string()>& waiting_for,
                   Nanoseconds elapsed, Nanoseconds deadline);
  void check_poison(const std::function<std::string()>& waiting_for) const;
  [[noreturn]] void fail(int64_t culprit, const std::string& message);
  std::vector<int64_t> missing_ranks(const Operation& operation) const;
  std::string where(const Operation& operation) const;
  std::string whereabouts(int64_t rank) const;
  std::string signature() const;

  std::shared_ptr<Arena> arena_;
  std::string axis_;
  std::vector<int64_t> members_;
  int64_t rank_ = 0;
  int64_t size_ = 1;
  std::chrono::milliseconds timeout_{600'000};
  Nanoseconds spin_ = 0;

  GroupControl* control_ = nullptr;
  RankControl* ranks_ = nullptr;
  Slots* slots_ = nullptr;
  Channel* channels_ = nullptr;

  uint64_t sequence_ = 0;   // of the last collective that was posted
  uint64_t ring_free_ = 0;  // all ranks have completed up to here, as far as this rank knows
  uint64_t staged_ = 0;     // staged pieces of all calls before the current one
  int64_t allocations_ = 0;
  std::deque<std::shared_ptr<Operation>> under_way_;  // collectives, in order
  struct Peer {
    std::deque<std::shared_ptr<Operation>> sends, receives;
    uint64_t sent = 0, received = 0;            // slots used by complete messages
    uint64_t send_number = 0, recv_number = 0;  // messages posted
  };
  std::vector<Peer> peers_;
  int64_t messages_under_way_ = 0;
  std::vector<const std::byte*> sources_;  // scratch of take()

  std::array<Record, ring_entries> records_{};
  int64_t recorded_ = 0;
};

}  // namespace trireme::comm
