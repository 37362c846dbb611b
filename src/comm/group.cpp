#include "comm/group.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "comm/futex.h"
#include "comm/reduce.h"

namespace trireme::comm {
namespace {

constexpr int64_t spin_nanoseconds = 20'000;
constexpr int64_t look_nanoseconds = 500'000'000;  // between two looks at the peers' processes
constexpr int64_t patience_nanoseconds = 1'000'000'000;

int64_t now() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

int64_t blocks_of_input(const Call& call, int64_t size) {
  return call.kind == Kind::reduce_scatter || call.kind == Kind::all_to_all ? size : 1;
}

}  // namespace

Group::Group(std::string axis) : axis_(std::move(axis)), members_{0} {}

Group::Group(std::shared_ptr<Arena> arena, GroupOptions options)
    : arena_(std::move(arena)),
      axis_(std::move(options.axis)),
      members_(std::move(options.members)),
      rank_(options.rank),
      timeout_(options.timeout) {
  if (members_.empty()) {
    members_.resize(static_cast<size_t>(arena_->ranks()));
    std::iota(members_.begin(), members_.end(), 0);
  }
  size_ = static_cast<int64_t>(members_.size());
  TRIREME_CHECK(rank_ >= 0 && rank_ < size_, "rank {} of {}", rank_, size_);
  TRIREME_CHECK(timeout_.count() > 0, "a deadline of {} ms", timeout_.count());
  const int64_t self = members_[static_cast<size_t>(rank_)];
  arena_->enroll(self);
  // With more ranks than processors a spinning rank keeps the awaited one from running.
  spin_ = size_ <= ::sysconf(_SC_NPROCESSORS_ONLN) ? spin_nanoseconds : 0;

  const std::string_view who(reinterpret_cast<const char*>(members_.data()), members_.size() * sizeof(int64_t));
  // A second group of the same ranks must not find the counters of the first.
  const std::string stem = fmt::format("{}/{}/", axis_, hash_hex(who));
  const std::string name = fmt::format("{}{}/", stem, arena_->next_instance(stem, self));
  const auto block = [&](const char* part, int64_t bytes) {
    return arena_->find_or_allocate(name + part, bytes, self);
  };
  const auto n = static_cast<size_t>(size_);
  control_ = reinterpret_cast<GroupControl*>(block("control", sizeof(GroupControl)));
  ranks_ = reinterpret_cast<RankControl*>(block("ranks", static_cast<int64_t>(n * sizeof(RankControl))));
  slots_ = reinterpret_cast<Slots*>(block("slots", static_cast<int64_t>(n * sizeof(Slots))));
  channels_ = reinterpret_cast<Channel*>(block("channels", static_cast<int64_t>(n * n * sizeof(Channel))));
  peers_.resize(n);
  sources_.resize(n);
}

Group::~Group() = default;

// ---- posting

void Group::check(const Call& call) const {
  const std::string what = describe(call);
  if (call.count < 0) throw_input("{} on axis {}: a negative count", what, axis_);
  const bool message = call.kind == Kind::send || call.kind == Kind::recv;
  if ((message || call.kind == Kind::broadcast) && (call.root < 0 || call.root >= size_)) {
    throw_input("{} on axis {}: rank {} is not one of its {} ranks", what, axis_, call.root, size_);
  }
  if (message && call.root == rank_) throw_input("{} on axis {}: rank {} cannot send to itself", what, axis_, rank_);
  if (call.input == nullptr || call.output == nullptr) return;
  const int64_t bytes = call.count * size_of(call.dtype);
  const auto* in = static_cast<const std::byte*>(call.input);
  const auto* out = static_cast<const std::byte*>(call.output);
  const int64_t in_bytes = bytes * blocks_of_input(call, size_);
  const bool wide = call.kind == Kind::all_gather || call.kind == Kind::all_to_all;
  const int64_t out_bytes = bytes * (wide ? size_ : 1);
  if (in + in_bytes <= out || out + out_bytes <= in || bytes == 0) return;
  const bool allowed = (call.kind == Kind::all_reduce && in == out) ||
                       (call.kind == Kind::all_gather && in == out + rank_ * bytes) ||
                       (call.kind == Kind::reduce_scatter && out == in + rank_ * bytes);
  if (!allowed) {
    throw_input(
        "{} on axis {}: input and output overlap; in place means block {} of the larger one for all_gather and "
        "reduce_scatter, and is not possible for all_to_all",
        what, axis_, rank_);
  }
}

void Group::run_alone(const Call& call) const {
  const auto bytes = static_cast<size_t>(call.count * size_of(call.dtype));
  if (call.input != nullptr && call.output != nullptr && call.input != call.output && bytes != 0) {
    std::memcpy(call.output, call.input, bytes);
  }
}

std::shared_ptr<Operation> Group::post(Call call) {
  check(call);
  auto operation = std::make_shared<Operation>(std::move(call));
  if (size_ == 1) {
    run_alone(operation->call);
    operation->done = true;
    operation->call.keep_alive.reset();
    return operation;
  }
  check_poison([&] { return where(*operation); });
  operation->element_bytes_ = size_of(operation->call.dtype);

  const Kind kind = operation->call.kind;
  Peer& peer = peers_[static_cast<size_t>(operation->call.root)];
  if (kind == Kind::send || kind == Kind::recv) {
    operation->sequence = kind == Kind::send ? ++peer.send_number : ++peer.recv_number;
  } else {
    operation->sequence = ++sequence_;
    await_ring(sequence_);
  }
  const Record record{pack(operation->call), operation->sequence, operation->call.count, now(), 0};
  operation->record_ = recorded_++;
  records_[static_cast<size_t>(operation->record_ % ring_entries)] = record;
  RankControl& mine = ranks_[rank_];
  mine.last_packed.store(record.packed, std::memory_order_relaxed);
  mine.last_sequence.store(record.sequence, std::memory_order_relaxed);
  mine.last_count.store(record.count, std::memory_order_relaxed);
  mine.last_posted.store(record.posted, std::memory_order_relaxed);

  if (kind == Kind::send || kind == Kind::recv) {
    (kind == Kind::send ? peer.sends : peer.receives).push_back(operation);
    ++messages_under_way_;
    advance_messages();
  } else {
    post_collective(*operation);
    under_way_.push_back(operation);
  }
  return operation;
}

// An entry of the ring is written again after ring_entries calls: all ranks must have read it.
void Group::await_ring(uint64_t sequence) {
  if (sequence <= static_cast<uint64_t>(ring_entries) + ring_free_) return;
  const uint64_t needed = sequence - static_cast<uint64_t>(ring_entries);
  const auto free = [&] {
    uint64_t least = ~uint64_t{0};
    for (int64_t r = 0; r < size_; ++r) least = std::min(least, ranks_[r].completed.load());
    ring_free_ = least;
    return least >= needed;
  };
  // Behind is who holds up the oldest call, not everybody who has not completed the one that lies in the entry.
  block(
      free, [&] { return fmt::format("call #{} on axis {} (64 earlier calls are under way)", sequence, axis_); },
      [&] { return under_way_.empty() ? std::vector<int64_t>() : missing_ranks(*under_way_.front()); }, timeout_);
}

void Group::post_collective(Operation& operation) {
  const Call& call = operation.call;
  Entry& entry = this->entry(rank_, operation.sequence);
  const int64_t blocks = blocks_of_input(call, size_);
  const int64_t bytes = call.count * operation.element_bytes_ * blocks;
  const bool inlined = bytes <= inline_bytes;
  const void* input = call.input != nullptr ? call.input : call.output;
  entry.packed.store(pack(call), std::memory_order_relaxed);
  entry.count.store(call.count, std::memory_order_relaxed);
  entry.input_offset.store(inlined || input == nullptr ? not_in_arena : arena_->offset_of(input, bytes),
                           std::memory_order_relaxed);
  entry.claimed.store(0, std::memory_order_relaxed);
  entry.finished.store(0, std::memory_order_relaxed);
  if (inlined && bytes != 0 && (call.kind != Kind::broadcast || call.root == rank_))
    put(operation, 0, call.count, entry.data);
  entry.sequence.store(operation.sequence);
  notify();
}

void Group::complete(Operation& operation) {
  operation.done = true;
  operation.worked_ = true;
  operation.call.keep_alive.reset();
  Record& record = records_[static_cast<size_t>(operation.record_ % ring_entries)];
  if (operation.record_ + ring_entries >= recorded_) record.finished = now();
}

// ---- waiting

// The counters above are written and read with sequential consistency, and so are bell and sleepers: either the writer
// sees that someone sleeps, or the sleeper, who looks once more after saying so, sees the counter.
void Group::notify() {
  if (control_->sleepers.load() == 0) return;
  control_->bell.fetch_add(1);
  futex_wake_all(control_->bell);
}

bool Group::advance() {
  bool moved = false;
  for (size_t i = 0; i < under_way_.size(); ++i) {
    Operation& operation = *under_way_[i];
    if (!operation.done) moved |= step(operation);
    if (!operation.worked_) break;  // the next call comes after this one on every rank
  }
  uint64_t completed = 0;
  while (!under_way_.empty() && under_way_.front()->done) {
    completed = under_way_.front()->sequence;
    under_way_.pop_front();
  }
  if (completed != 0) {
    ranks_[rank_].completed.store(completed);
    notify();
  }
  if (messages_under_way_ != 0) moved |= advance_messages();
  return moved;
}

template <typename Ready, typename What, typename Missing>
void Group::block(const Ready& ready, const What& waiting_for, const Missing& missing,
                  std::chrono::milliseconds timeout_of_this) {
  check_poison(waiting_for);  // first: after a failure the callers' buffers may be gone, and nothing may touch them
  advance();
  if (ready()) return;
  const Nanoseconds timeout = std::chrono::nanoseconds(timeout_of_this).count();
  Nanoseconds start = now();  // of the time in which nothing moved
  Nanoseconds looked = start;
  const auto turn = [&] {
    if (advance()) start = 0;
    return ready();
  };
  for (;;) {
    const Nanoseconds spin_end = now() + spin_;
    do {
      for (int i = 0; i < 16; ++i) {
        if (turn()) return;
        pause();
      }
    } while (now() < spin_end);
    check_poison(waiting_for);

    if (start == 0) start = now();
    struct Sleeper {
      GroupControl* control;
      uint32_t bell;
      explicit Sleeper(GroupControl* c) : control(c), bell(c->bell.load()) { control->sleepers.fetch_add(1); }
      ~Sleeper() { control->sleepers.fetch_sub(1); }
    };
    {
      const Sleeper sleeper(control_);
      if (turn()) return;
      if (start != 0 && !arena_->poisoned()) {
        const Nanoseconds left = std::max<Nanoseconds>(start + timeout - now(), 1'000);
        futex_wait(control_->bell, sleeper.bell, std::min(left, look_nanoseconds));
      }
    }
    if (turn()) return;
    check_poison(waiting_for);
    const Nanoseconds time = now();
    if (start == 0) start = time;
    const bool expired = time - start >= timeout;
    if (expired || (time - start >= patience_nanoseconds && time - looked >= look_nanoseconds)) {
      looked = time;
      check_peers(missing(), waiting_for, time - start, timeout);
    }
  }
}

void Group::wait(Operation& operation, std::chrono::milliseconds timeout) {
  if (operation.done) return;
  // What holds this call up may be an earlier one.
  const auto stuck = [&]() -> const Operation& {
    const bool message = operation.call.kind == Kind::send || operation.call.kind == Kind::recv;
    return message || under_way_.empty() ? operation : *under_way_.front();
  };
  block([&] { return operation.done; }, [&] { return where(stuck()); }, [&] { return missing_ranks(stuck()); },
        timeout);
}

bool Group::test(Operation& operation) {
  if (!operation.done) progress();
  return operation.done;
}

void Group::progress() {
  if (size_ == 1) return;
  check_poison([&] { return fmt::format("progress on axis {}", axis_); });
  advance();
}

void Group::run(Call call) { wait(*post(std::move(call))); }

void Group::block_until(const std::function<bool()>& ready, const std::function<std::string()>& waiting_for,
                        const std::function<std::vector<int64_t>()>& missing) {
  if (ready()) return;
  TRIREME_CHECK(size_ > 1, "{} cannot come true in a group of one", waiting_for());
  block(ready, waiting_for, missing, timeout_);
}

std::byte* Group::shared_alloc(std::string_view name, int64_t bytes) {
  TRIREME_CHECK(arena_ != nullptr, "a group of one has no arena");
  const int64_t index = allocations_++;  // a full arena refuses the same call on every rank, so it counts too
  return arena_->allocate(control_->allocations, index, name, bytes, members_[static_cast<size_t>(rank_)]);
}

}  // namespace trireme::comm
