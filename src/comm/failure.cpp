// Telling what went wrong: who did not come, why, and what everyone was doing.
#include <algorithm>
#include <span>

#include "base/clock.h"
#include "base/error.h"
#include "base/host.h"
#include "base/log.h"
#include "comm/flight_log.h"
#include "comm/shm_group.h"

namespace trireme::comm {
namespace {

constexpr int64_t tell_nanoseconds = 5'000'000'000;  // of waiting, before it is told

double seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

std::string ShmGroup::host_of(int64_t rank) const {
  const auto member = arena_->member(members_[static_cast<size_t>(rank)]);
  return member ? member->host : "an unknown host";
}

// `rank 1 (pid 4242 on host), whose last call was barrier #16, 3.2 s ago`
std::string ShmGroup::whereabouts(int64_t rank) const {
  const auto member = arena_->member(members_[static_cast<size_t>(rank)]);
  std::string text = fmt::format("rank {}", members_[static_cast<size_t>(rank)]);
  if (!member) return text + ", which has not joined yet";
  text += fmt::format(" (pid {} on {})", member->process.pid, member->host);
  const RankControl& theirs = ranks_[rank];
  const int64_t posted = theirs.last_posted.load(std::memory_order_relaxed);
  if (posted == 0) return text + ", which has made no call yet";
  return text + fmt::format(", whose last call was {} #{}, {:.1f} s ago",
                            comm::describe(theirs.last_packed.load(std::memory_order_relaxed),
                                           theirs.last_count.load(std::memory_order_relaxed)),
                            theirs.last_sequence.load(std::memory_order_relaxed),
                            seconds(steady_nanoseconds() - posted));
}

std::vector<int64_t> ShmGroup::missing_ranks(const ShmOperation& operation) const {
  if (is_message(operation.call.kind)) return {operation.call.root};
  std::vector<int64_t> missing;
  for (int64_t r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const Entry& theirs = entry(r, operation.sequence);
    bool late = theirs.sequence.load() != operation.sequence;
    if (operation.arrived_) {
      switch (operation.way_) {
        case ShmOperation::Way::inlined:
          break;
        case ShmOperation::Way::shared:
          late = ranks_[r].completed.load() < operation.sequence;
          break;
        case ShmOperation::Way::pull:
          late = theirs.finished.load() == 0;
          break;
        case ShmOperation::Way::staged: {
          const uint64_t end = operation.base_ + static_cast<uint64_t>(operation.pieces_);
          late = ranks_[r].staged.load() < end || ranks_[r].consumed.load() < end;
          break;
        }
      }
    }
    if (late) missing.push_back(r);
  }
  return missing;
}

void ShmGroup::check_poison(const std::function<std::string()>& waiting_for) {
  if (!arena_->poisoned()) return;
  const std::string text = fmt::format("{}: {} cannot complete, because another rank failed: {}", signature(),
                                       waiting_for(), arena_->poison_message());
  record_failure(text);
  throw WorkerError(text);
}

// `rank`, the rank that it waits for in turn (a message has not come), and so on to the one that holds them all up.
// Ranks that wait in a circle hold each other up.
std::vector<int64_t> ShmGroup::waiting_chain(int64_t rank) const {
  std::vector<int64_t> chain = {rank};
  while (state_of_rank(chain.back()) == ProcessState::alive) {
    const int64_t next = ranks_[chain.back()].waits_for.load(std::memory_order_relaxed) - 1;
    if (next < 0 || next == rank_ || std::ranges::find(chain, next) != chain.end()) break;
    chain.push_back(next);
  }
  return chain;
}

// `rank 1 (pid 4242 on host), whose last call was ...: it is stopped; rank 2 ...: it is alive, but late`
std::string ShmGroup::late_in_words(const std::vector<int64_t>& missing) const {
  std::string who;
  for (const int64_t rank : missing) {
    const std::vector<int64_t> chain = waiting_chain(rank);
    // Who holds it up is told already.
    if (chain.size() > 1 && std::ranges::find(missing, chain.back()) != missing.end()) continue;
    if (!who.empty()) who += "; ";
    for (const int64_t link : chain)
      who += (link == rank ? "" : ": it is alive, and waits in turn for ") + whereabouts(link);
    const ProcessState is = state_of_rank(chain.back());
    who += is == ProcessState::stopped ? ": it is stopped (by a signal or a debugger)"
           : is == ProcessState::alive ? ": it is alive, but late"
                                       : "";
  }
  return who.empty() ? "nobody is missing any more" : who;
}

ProcessState ShmGroup::state_of_rank(int64_t rank) const {
  const auto member = arena_->member(members_[static_cast<size_t>(rank)]);
  return member ? state_of(member->process) : ProcessState::unknown;
}

void ShmGroup::check_peers(const std::vector<int64_t>& missing, const std::function<std::string()>& waiting_for,
                           Nanoseconds elapsed, Nanoseconds deadline) {
  for (const int64_t rank : missing) {
    if (state_of_rank(rank) != ProcessState::dead) continue;
    // It may have failed in words just before it died: that is the better story.
    check_poison(waiting_for);
    fail(members_[static_cast<size_t>(rank)], fmt::format("{}: {} failed after {:.1f} s: {} died", signature(),
                                                          waiting_for(), seconds(elapsed), whereabouts(rank)));
  }
  if (elapsed >= deadline) {
    const int64_t culprit = missing.empty() ? rank_ : waiting_chain(missing.front()).back();
    fail(members_[static_cast<size_t>(culprit)],
         fmt::format("{}: {} failed: its deadline of {:.1f} s is over ({:.1f} s have passed). Did not arrive: {}",
                     signature(), waiting_for(), seconds(deadline), seconds(elapsed), late_in_words(missing)));
  }
  // A deadline may be minutes long; whoever looks at the log before it wants to know. Stopped ranks may be continued,
  // and late ones come, so this is no failure.
  if (elapsed < std::min(tell_nanoseconds, deadline / 2) || told_) return;
  told_ = true;
  log::warning("{} has waited {:.1f} s for {}, until {:.1f} s at most: {}", signature(), seconds(elapsed),
               waiting_for(), seconds(deadline), late_in_words(missing));
}

void ShmGroup::fail(int64_t culprit, const std::string& message) {
  record_failure(message);
  if (arena_->poison(culprit, message)) log::error("last calls of {}:\n{}", signature(), flight_record());
  control_->bell.fetch_add(1);
  notify();
  throw WorkerError(message);
}

void ShmGroup::abort(const std::string& message, bool with_record) noexcept {
  if (size_ == 1) return;
  try {
    const int64_t self = members_[static_cast<size_t>(rank_)];
    if (with_record) record_failure(message);
    if (arena_->poison(self, fmt::format("{}: {}", signature(), message)) && with_record) {
      log::error("last calls of {}:\n{}", signature(), flight_record());
    }
  } catch (...) {
    arena_->poison(-1, "a rank gave up, and had no memory left to say why");
  }
  notify();
}

// What is under way will not be done any more.
void ShmGroup::record_failure(std::string_view message) {
  const Nanoseconds time = steady_nanoseconds();
  const auto mark = [&](const std::deque<std::shared_ptr<ShmOperation>>& queue) {
    for (const auto& operation : queue) {
      if (!operation->done) recorder_->finished(operation->record_, time, FlightState::failed);
    }
  };
  mark(under_way_);
  for (const Peer& peer : peers_) {
    mark(peer.sends);
    mark(peer.receives);
  }
  recorder_->set_failure(message);
}

}  // namespace trireme::comm
