// A group: ranks of one machine that do collectives through the arena. The torch-free core under Communicator, whose
// contract (communicator.h) is this class's too.
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
#include "comm/call.h"
#include "comm/control.h"
#include "comm/flight_recorder.h"
#include "comm/layout.h"
#include "comm/link.h"

namespace trireme::comm {

/// What ranks compare when they call (comm.check).
enum class CheckLevel : uint8_t {
  calls,   ///< operation, operator, dtype, counts, root, splits
  shapes,  ///< also the tensors' shapes
  all,     ///< also that no input of a reduction holds NaN
};

/// What all groups of a process share.
struct GroupSettings {
  CheckLevel check = CheckLevel::calls;
  std::map<std::string, LinkSpeed> links;    ///< of emulated axes, by name
  std::shared_ptr<FlightRecorder> recorder;  ///< null: a small private one for each group
  std::function<int64_t()> clock;            ///< of emulated links, nanoseconds; null: the steady clock
};

struct GroupOptions {
  std::string axis = "world";
  /// Arena ranks of the group's members, in the order of the group's ranks; empty: all ranks of the arena.
  std::vector<int64_t> members;
  int64_t rank = 0;  ///< of this process in the group
  std::chrono::milliseconds timeout{600'000};
  std::shared_ptr<const GroupSettings> settings;  ///< null: the defaults
  int64_t generation = 0;                         ///< of the job's ranks: see rebuild.h
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
  enum class Way { inlined, shared, pull, staged };

  const void* input(int64_t t) const;
  void* output(int64_t t) const;

  Layout in_, out_;  // this rank's sides
  uint64_t packed_ = 0;
  int64_t element_bytes_ = 0;
  int64_t input_bytes_ = 0;  // of an element of the inputs
  int64_t record_ = 0;       // number in the flight recorder
  bool arrived_ = false;     // all ranks have posted, and their calls agree
  bool worked_ = false;      // nothing is left to do for this rank, though peers may be at it
  bool moved_ = false;       // the result is there; an emulated link may still be busy with it
  int64_t release_ = 0;      // when an emulated link lets it go
  int64_t seen_ = 0;         // ranks below this one have posted
  Way way_ = Way::inlined;
  int64_t piece_ = 0;  // elements of a piece
  int64_t pieces_ = 0;
  uint64_t base_ = 0;    // staged pieces, or messages' slots, before this call
  int64_t put_ = 0;      // pieces that this rank has copied in
  int64_t taken_ = 0;    // pieces that this rank has taken
  bool direct_ = false;  // a message that the receiver reads where it lies
  // Uneven all_to_all, once all have come: where this rank's block starts at each rank, and the extremes.
  std::vector<int64_t> starts_;
  int64_t largest_block_ = 0;
  int64_t most_given_ = 0;      // elements, by any rank
  int64_t most_exchanged_ = 0;  // elements that a rank gives to others, or gets
};

class Group {
 public:
  /// A group of one rank: every call is complete when it is posted.
  explicit Group(std::string axis, std::shared_ptr<const GroupSettings> settings = nullptr);
  /// Collective in effect, without waiting: all members make it with the same axis.
  Group(std::shared_ptr<Arena> arena, GroupOptions options);
  ~Group();

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  const std::string& axis() const { return axis_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }  ///< null at size 1
  const std::shared_ptr<const GroupSettings>& settings() const { return settings_; }
  /// Arena ranks of the members, in the order of the group's ranks.
  const std::vector<int64_t>& members() const { return members_; }
  int64_t generation() const { return generation_; }
  const EmulatedLink& link() const { return link_; }

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
  /// Says that [memory, memory + bytes) is one for all ranks (Sharing::once), and asks for it.
  void note_once(const std::byte* memory, int64_t bytes) { once_[memory] = bytes; }
  bool is_once(const void* memory) const;
  /// Blocks until `ready` holds, under the deadline, while calls under way go on. `waiting_for` names what and
  /// `missing` the ranks that did not come, for the error. Whoever makes it hold calls notify().
  void block_until(const std::function<bool()>& ready, const std::function<std::string()>& waiting_for,
                   const std::function<std::vector<int64_t>()>& missing);
  void notify();

  void abort(const std::string& message, bool with_record = true) noexcept;
  std::string flight_record() const;

 private:
  using Nanoseconds = int64_t;

  // post.cpp: checking and posting
  void check(const Operation& operation) const;
  void check_overlap(const Operation& operation) const;
  void check_numbers(const Operation& operation) const;
  void lay_out(Operation& operation) const;
  void run_alone(const Operation& operation) const;
  void post_collective(Operation& operation);
  void write_table(const Operation& operation, Entry& entry) const;
  uint64_t detail_of(const Operation& operation) const;
  void record(Operation& operation);

  // group.cpp: waiting
  void await_ring(uint64_t sequence);
  void complete(Operation& operation);
  bool release(Operation& operation);
  Nanoseconds link_now() const;
  Nanoseconds until_release() const;
  bool held_by_link() const;
  template <typename Ready, typename What, typename Missing>
  void block(const Ready& ready, const What& waiting_for, const Missing& missing, std::chrono::milliseconds timeout);
  bool advance();
  Entry& entry(int64_t rank, uint64_t sequence) const {
    return ranks_[rank].ring[sequence % static_cast<uint64_t>(ring_entries)];
  }

  // ways.cpp: how collectives get done; each returns whether anything moved
  bool step(Operation& operation);
  bool all_posted(Operation& operation);
  void choose_way(Operation& operation);
  bool inputs_in_arena(const Operation& operation) const;
  bool outputs_in_arena(const Operation& operation) const;
  bool has_output(const Operation& operation, int64_t rank) const;
  void check_own_memory(const Operation& operation);
  void check_one_memory(const Operation& operation);
  bool step_shared(Operation& operation);
  bool step_pull(Operation& operation);
  bool step_staged(Operation& operation);
  void put(const Operation& operation, int64_t first, int64_t length, std::byte* to, int64_t stride) const;
  /// Where rank r's elements for this rank are: from `flat_[r]` on, or in its tensors in the arena.
  enum class Source { flat, tensors };
  void take(const Operation& operation, int64_t first, int64_t length, Source source, int64_t target);
  void take_once(const Operation& operation, int64_t first, int64_t length, int64_t owner);
  void do_piece(const Operation& operation, int64_t owner, int64_t piece);
  int64_t pieces_of(const Operation& operation, int64_t owner) const;
  std::byte* input_of(const Operation& operation, int64_t rank, int64_t tensor) const;
  std::byte* output_of(const Operation& operation, int64_t rank, int64_t tensor) const;
  int64_t output_offset(const Operation& operation, int64_t tensor) const;

  // agreement.cpp: comparing the calls, and what follows from all of them
  void check_agreement(Operation& operation);
  void read_exchange(Operation& operation);
  WireCost wire_cost(const Operation& operation) const;
  std::string describe_entry(const Entry& entry) const;

  // messages.cpp: send and recv
  bool advance_messages();
  bool step_send(Operation& operation, Channel& channel, int64_t peer);
  bool step_recv(Operation& operation, Channel& channel, int64_t peer);
  Channel& channel(int64_t from, int64_t to);

  // failure.cpp: telling what went wrong
  void check_peers(const std::vector<int64_t>& missing, const std::function<std::string()>& waiting_for,
                   Nanoseconds elapsed, Nanoseconds deadline);
  void check_poison(const std::function<std::string()>& waiting_for);
  void record_failure(std::string_view message);
  std::string late_in_words(const std::vector<int64_t>& missing) const;
  std::vector<int64_t> waiting_chain(int64_t rank) const;
  ProcessState state_of_rank(int64_t rank) const;
  void dump_if_asked() const;
  [[noreturn]] void fail(int64_t culprit, const std::string& message);
  std::vector<int64_t> missing_ranks(const Operation& operation) const;
  std::string where(const Operation& operation) const;
  std::string describe(const Operation& operation) const;
  std::string whereabouts(int64_t rank) const;
  std::string signature() const;
  std::string host_of(int64_t rank) const;

  std::shared_ptr<Arena> arena_;
  std::shared_ptr<const GroupSettings> settings_;
  std::string axis_;
  int64_t generation_ = 0;
  std::vector<int64_t> members_;
  int64_t rank_ = 0;
  int64_t size_ = 1;
  std::chrono::milliseconds timeout_{600'000};
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
  std::map<const std::byte*, int64_t> once_;          // memory that is one for all ranks
  std::deque<std::shared_ptr<Operation>> under_way_;  // collectives, in order
  struct Peer {
    std::deque<std::shared_ptr<Operation>> sends, receives;
    uint64_t sent = 0, received = 0;            // slots used by complete messages
    uint64_t send_number = 0, recv_number = 0;  // messages posted
  };
  std::vector<Peer> peers_;
  int64_t messages_under_way_ = 0;
  std::vector<const std::byte*> flat_;  // scratch of take()

  EmulatedLink link_;
  std::vector<EmulatedLink> incoming_;  // of messages from each rank
  std::shared_ptr<FlightRecorder> recorder_;
  bool told_ = false;        // of the present wait: that it is long
  int32_t recorded_as_ = 0;  // the recorder's number of this group
};

}  // namespace trireme::comm
