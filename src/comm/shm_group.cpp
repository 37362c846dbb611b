#include "comm/shm_group.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/futex.h"

namespace trireme::comm {
namespace {

constexpr int64_t spin_nanoseconds = 20'000;
constexpr int64_t look_nanoseconds = 500'000'000;  // between two looks at the peers' processes
constexpr int64_t patience_nanoseconds = 1'000'000'000;

void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

GroupOptions with_all_members(GroupOptions options, int64_t ranks) {
  if (options.members.empty()) {
    options.members.resize(static_cast<size_t>(ranks));
    std::iota(options.members.begin(), options.members.end(), 0);
  }
  return options;
}

}  // namespace

ShmGroup::ShmGroup(std::string axis, std::shared_ptr<const GroupSettings> settings)
    : Group(std::move(axis), std::move(settings)) {}

ShmGroup::ShmGroup(std::shared_ptr<Arena> arena, GroupOptions options)
    : Group(with_all_members(std::move(options), arena->ranks())), arena_(std::move(arena)) {
  const int64_t self = members_[static_cast<size_t>(rank_)];
  arena_->enroll(self);
  // With more ranks than processors a spinning rank keeps the awaited one from running.
  spin_ = size_ <= ::sysconf(_SC_NPROCESSORS_ONLN) ? spin_nanoseconds : 0;

  const std::string_view who(reinterpret_cast<const char*>(members_.data()), members_.size() * sizeof(int64_t));
  // A second group of the same ranks must not find the counters of the first.
  const std::string stem = fmt::format("{}/{}/", axis_, hash_hex(who));
  const int64_t instance = arena_->next_instance(stem, self);
  block_name_ = fmt::format("{}{}/", stem, instance);
  const auto block = [&](const char* part, int64_t bytes) {
    return arena_->find_or_allocate(block_name_ + part, bytes, self);
  };
  const auto n = static_cast<size_t>(size_);
  control_ = reinterpret_cast<GroupControl*>(block("control", sizeof(GroupControl)));
  ranks_ = reinterpret_cast<RankControl*>(block("ranks", static_cast<int64_t>(n * sizeof(RankControl))));
  slots_ = reinterpret_cast<Slots*>(block("slots", static_cast<int64_t>(n * sizeof(Slots))));
  channels_.resize(n);
  peers_.resize(n);
  flat_.resize(n);
  incoming_.assign(n, link_);
  enroll_in_recorder(instance);
}

ShmGroup::~ShmGroup() = default;

// An entry of the ring is written again after ring_entries calls: all ranks must have read it.
void ShmGroup::await_ring(uint64_t sequence) {
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

// The channels of one sender, in one block. A group that sends no messages has none.
Channel& ShmGroup::channel(int64_t from, int64_t to) {
  Channel*& row = channels_[static_cast<size_t>(from)];
  if (row == nullptr) {
    row = reinterpret_cast<Channel*>(arena_->find_or_allocate(fmt::format("{}channels/{}", block_name_, from),
                                                              size_ * static_cast<int64_t>(sizeof(Channel)),
                                                              members_[static_cast<size_t>(rank_)]));
  }
  return row[to];
}

// The result is there. Unless a link is emulated that is the end of the call.
void ShmGroup::complete(ShmOperation& operation) {
  operation.worked_ = operation.moved_ = true;
  release(operation);
}

bool ShmGroup::release(ShmOperation& operation) {
  if (operation.release_ != 0 && link_now() < operation.release_) return false;
  operation.done = true;
  operation.call.keep_alive.reset();
  recorder_->finished(operation.record_, steady_nanoseconds());
  return true;
}

// Until an emulated link lets go of the next result that is there; for ever when it holds none.
ShmGroup::Nanoseconds ShmGroup::until_release() const {
  Nanoseconds first = std::numeric_limits<Nanoseconds>::max();
  const auto look = [&](const std::deque<std::shared_ptr<ShmOperation>>& queue) {
    for (const auto& operation : queue) {
      if (operation->moved_ && !operation->done) first = std::min(first, operation->release_);
    }
  };
  if (!link_.speed().emulated()) return first;
  look(under_way_);
  for (const Peer& peer : peers_) look(peer.receives);
  if (first == std::numeric_limits<Nanoseconds>::max()) return first;
  return settings_->clock ? 1'000'000 : std::max<Nanoseconds>(first - steady_nanoseconds(), 1'000);
}

bool ShmGroup::held_by_link() const { return until_release() != std::numeric_limits<Nanoseconds>::max(); }

// ---- waiting

// The counters above are written and read with sequential consistency, and so are bell and sleepers: either the writer
// sees that someone sleeps, or the sleeper, who looks once more after saying so, sees the counter.
void ShmGroup::notify() {
  if (control_->sleepers.load() == 0) return;
  control_->bell.fetch_add(1);
  futex_wake_all(control_->bell);
}

bool ShmGroup::advance() {
  bool moved = false;
  for (size_t i = 0; i < under_way_.size(); ++i) {
    ShmOperation& operation = *under_way_[i];
    if (!operation.done) moved |= operation.moved_ ? release(operation) : step(operation);
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
void ShmGroup::block(const Ready& ready, const What& waiting_for, const Missing& missing,
                     std::chrono::milliseconds timeout_of_this) {
  check_poison(waiting_for);  // first: after a failure the callers' buffers may be gone, and nothing may touch them
  advance();
  if (ready()) return;
  const Nanoseconds timeout = std::chrono::nanoseconds(timeout_of_this).count();
  told_ = false;
  Nanoseconds start = steady_nanoseconds();  // of the time in which nothing moved
  Nanoseconds looked = start;
  const auto turn = [&] {
    if (advance()) start = 0;
    return ready();
  };
  // Told to those who wait for this rank: it is not what holds them up.
  struct Waiting {
    std::atomic<int64_t>& rank;
    ~Waiting() { rank.store(0, std::memory_order_relaxed); }
  } waiting{ranks_[rank_].waits_for};
  for (;;) {
    const Nanoseconds spin_end = steady_nanoseconds() + spin_;
    do {
      for (int i = 0; i < 16; ++i) {
        if (turn()) return;
        pause();
      }
    } while (steady_nanoseconds() < spin_end);
    check_poison(waiting_for);

    if (start == 0) start = steady_nanoseconds();
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
        const Nanoseconds left = std::max<Nanoseconds>(start + timeout - steady_nanoseconds(), 1'000);
        futex_wait(control_->bell, sleeper.bell, std::min({left, look_nanoseconds, until_release()}));
      }
    }
    if (turn()) return;
    check_poison(waiting_for);
    const Nanoseconds time = steady_nanoseconds();
    if (start == 0) start = time;
    // What an emulated link holds is not late.
    if (held_by_link()) start = looked = time;
    const bool expired = time - start >= timeout;
    if (expired || (time - start >= patience_nanoseconds && time - looked >= look_nanoseconds)) {
      looked = time;
      dump_if_asked();
      const std::vector<int64_t> late = missing();
      waiting.rank.store(late.empty() ? 0 : late.front() + 1, std::memory_order_relaxed);
      check_peers(late, waiting_for, time - start, timeout);
    }
  }
}

void ShmGroup::wait(Operation& waited, std::chrono::milliseconds timeout) {
  if (waited.done) return;
  auto& operation = static_cast<ShmOperation&>(waited);
  // What holds this call up may be an earlier one.
  const auto stuck = [&]() -> const ShmOperation& {
    const bool message = operation.call.kind == Kind::send || operation.call.kind == Kind::recv;
    return message || under_way_.empty() ? operation : *under_way_.front();
  };
  block([&] { return operation.done; }, [&] { return where(stuck()); }, [&] { return missing_ranks(stuck()); },
        timeout);
}

void ShmGroup::progress() {
  if (size_ == 1) return;
  check_poison([&] { return fmt::format("progress on axis {}", axis_); });
  advance();
}

void ShmGroup::block_until(const std::function<bool()>& ready, const std::function<std::string()>& waiting_for,
                           const std::function<std::vector<int64_t>()>& missing) {
  if (ready()) return;
  TRIREME_CHECK(size_ > 1, "{} cannot come true in a group of one", waiting_for());
  block(ready, waiting_for, missing, timeout_);
}

bool ShmGroup::is_once(const void* memory) const {
  const auto* at = static_cast<const std::byte*>(memory);
  const auto after = once_.upper_bound(at);
  if (after == once_.begin()) return false;
  const auto& [start, bytes] = *std::prev(after);
  return at < start + bytes;
}

std::shared_ptr<Group> ShmGroup::subgroup(GroupOptions options) {
  TRIREME_CHECK(arena_ != nullptr, "a group of one has no arena");
  return std::make_shared<ShmGroup>(arena_, std::move(options));
}

Group::Memory ShmGroup::allocate(std::string_view name, int64_t each, bool one_for_all) {
  std::byte* memory = shared_alloc(name, one_for_all ? each : each * size_);
  if (one_for_all)
    note_once(memory, each);
  else
    memory += each * rank_;
  return {memory, arena_};
}

std::byte* ShmGroup::shared_alloc(std::string_view name, int64_t bytes) {
  TRIREME_CHECK(arena_ != nullptr, "a group of one has no arena");
  const int64_t index = allocations_++;  // a full arena refuses the same call on every rank, so it counts too
  return arena_->allocate(control_->allocations, index, name, bytes, members_[static_cast<size_t>(rank_)]);
}

}  // namespace trireme::comm
