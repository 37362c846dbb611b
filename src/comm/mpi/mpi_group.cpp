// Posting, waiting, and telling what went wrong; see mpi_group.h.
#include "comm/mpi/mpi_group.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/host.h"
#include "base/log.h"

namespace trireme::comm {
namespace {

constexpr int64_t spin_nanoseconds = 20'000;
constexpr int64_t shortest_pause = 5'000;
constexpr int64_t longest_pause = 200'000;
// mpirun ends the survivors a second after a rank has died: by then they should have said who it was.
constexpr int64_t look_nanoseconds = 100'000'000;
constexpr int64_t tell_peers_nanoseconds = 300'000'000;
constexpr int64_t tell_nanoseconds = 5'000'000'000;  // of waiting, before it is told

double seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

void sleep_for(int64_t nanoseconds) { std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds)); }

bool is_uneven_exchange(const Call& call) { return call.kind == Kind::all_to_all && call.extents != nullptr; }

std::string shorten(const std::vector<int64_t>& values) {
  constexpr size_t most = 16;
  if (values.size() <= most) return fmt::format("[{}]", fmt::join(values, ", "));
  return fmt::format("[{}, ... {} in all]", fmt::join(values.begin(), values.begin() + most, ", "), values.size());
}

}  // namespace

MpiGroup::MpiGroup(std::shared_ptr<MpiWorld> world, GroupOptions options)
    : Group(std::move(options)), world_(std::move(world)), mpi_(world_->mpi()) {
  const std::string_view who(reinterpret_cast<const char*>(members_.data()), members_.size() * sizeof(int64_t));
  const std::string stem = fmt::format("{}/{}/", axis_, hash_hex(who));
  const int64_t instance = world_->next_instance(stem);
  id_ = hash64(fmt::format("{}{}", stem, instance));
  // With more ranks than processors a spinning rank keeps the awaited one from running.
  spin_ = size_ <= ::sysconf(_SC_NPROCESSORS_ONLN) ? spin_nanoseconds : 0;
  peers_.resize(static_cast<size_t>(size_));
  for (Peer& peer : peers_) peer.incoming = link_;
  // MPI_Comm_create_group has no deadline; once all have come it needs none.
  world_->meet(id_, members_, axis_, timeout_);
  const std::vector<int> ranks(members_.begin(), members_.end());
  for (MpiComm* comm : {&data_, &words_}) {
    world_->require(mpi_.create_group(&world_->control(), ranks.data(), static_cast<int>(ranks.size()),
                                      static_cast<int>(id_ % 30'000), comm),
                    "MPI_Comm_create_group");
  }
  enroll_in_recorder(instance);
}

// After a failure peers may never come to it, and with calls under way the library still needs it.
MpiGroup::~MpiGroup() {
  if (!world_->failure().empty() || !under_way_.empty() || messages_under_way_ != 0 || std::uncaught_exceptions() != 0)
    return;
  mpi_.free_comm(&data_);
  mpi_.free_comm(&words_);
}

std::shared_ptr<Group> MpiGroup::subgroup(GroupOptions options) {
  return std::make_shared<MpiGroup>(world_, std::move(options));
}

Group::Memory MpiGroup::allocate(std::string_view name, int64_t each, bool /*one_for_all*/) {
  return allocate_alone(name, each);
}

std::shared_ptr<Operation> MpiGroup::post(Call call) {
  auto operation = std::make_shared<MpiOperation>(std::move(call));
  prepare(*operation);
  const Peer& peer = peers_[static_cast<size_t>(operation->call.root)];
  operation->sequence = 1 + (operation->call.kind == Kind::send   ? peer.send_number
                             : operation->call.kind == Kind::recv ? peer.recv_number
                                                                  : sequence_);
  check_failure([&] { return where(*operation); });
  if (is_message(operation->call.kind)) {
    post_message(operation);
  } else {
    ++sequence_;
    operation->mine_.posted = static_cast<uint64_t>(record(*operation));
    under_way_.push_back(operation);
    start_agreement(*operation);
  }
  advance();
  return operation;
}

// ---- what all ranks compare

void MpiGroup::start_agreement(MpiOperation& operation) {
  // Of an uneven all_to_all each rank has counts of its own, which are compared pair by pair.
  const uint64_t count = is_uneven_exchange(operation.call) ? 0 : static_cast<uint64_t>(operation.call.count);
  const uint64_t detail = detail_of(operation);
  MpiOperation::Words& words = operation.mine_;
  words.packed = operation.packed_;
  words.not_packed = ~words.packed;
  words.count = count;
  words.not_count = ~count;
  words.detail = detail;
  words.not_detail = ~detail;
  if (settings_->clock) words.posted = static_cast<uint64_t>(settings_->clock());
  int64_t most = operation.most_exchanged_;
  if (is_uneven_exchange(operation.call)) {
    const int64_t own_in = operation.in_.block(rank_), own_out = operation.out_.block(rank_);
    most = std::max(operation.in_.total() - own_in, operation.out_.total() - own_out);
  }
  words.exchanged = static_cast<uint64_t>(most);
  operation.all_ = words;
  static_assert(sizeof(MpiOperation::Words) == 8 * sizeof(uint64_t));
  world_->require(mpi_.all_reduce(&operation.all_, 8, MpiInteger::u64, MpiOp::max, &words_, &operation.agreement_),
                  "MPI_Iallreduce");
}

bool MpiGroup::agree(MpiOperation& operation) {
  int done = 0;
  world_->require(mpi_.test(&operation.agreement_, &done), "MPI_Test");
  if (done == 0) return false;
  const MpiOperation::Words& all = operation.all_;
  if (all.packed != ~all.not_packed || all.count != ~all.not_count || all.detail != ~all.not_detail)
    tell_difference(operation);
  operation.agreed_ = true;
  operation.most_exchanged_ = static_cast<int64_t>(all.exchanged);
  recorder_->started(operation.record_, steady_nanoseconds());
  if (link_.speed().emulated())
    operation.release_ = link_.leave(static_cast<int64_t>(all.posted), wire_cost(operation));
  return true;
}

// What this rank calls: `all_gather(F32 x 12, uneven) of counts [4, 8] of shape [4, 3]`.
std::string MpiGroup::in_full(const MpiOperation& operation) const {
  const Call& call = operation.call;
  std::string text = describe(operation);
  if (is_uneven_exchange(call)) {
    text += fmt::format(" to each rank {}, from each rank {}", shorten(call.extents->counts),
                        shorten(call.extents->output_counts));
  } else if (call.extents != nullptr) {
    text += fmt::format(" of counts {}", shorten(call.extents->counts));
  }
  if (settings_->check >= CheckLevel::shapes) text += fmt::format(" of shape {}", shorten(call.shape));
  return text;
}

// Every rank comes here, since all have the same maxima; so each tells the others what it calls.
void MpiGroup::tell_difference(MpiOperation& operation) {
  std::string mine(reinterpret_cast<const char*>(&operation.mine_), 6 * sizeof(uint64_t));
  const size_t words = mine.size();
  mine += in_full(operation);
  world_->tell_call(id_, operation.sequence, mine, members_);
  const auto end = steady_nanoseconds() + std::chrono::nanoseconds(timeout_).count();
  const auto compare = [&]() -> std::string {
    for (const int64_t member : members_) {
      const std::string* theirs =
          member == members_[static_cast<size_t>(rank_)] ? nullptr : world_->call_of(id_, operation.sequence, member);
      if (theirs == nullptr || theirs->substr(0, words) == mine.substr(0, words)) continue;
      return fmt::format("{}: call #{} on axis {} differs: rank {} on {} calls {}, rank {} on {} calls {}", signature(),
                         operation.sequence, axis_, members_[static_cast<size_t>(rank_)], host_name(),
                         in_full(operation), member, world_->host(member), theirs->substr(words));
    }
    return {};
  };
  std::string text;
  while (text.empty() && !world_->look() && steady_nanoseconds() < end) {
    text = compare();
    if (text.empty()) sleep_for(longest_pause);
  }
  if (text.empty()) text = compare();
  check_failure([&] { return where(operation); });
  if (text.empty())
    text = fmt::format("{}: call #{} on axis {} differs: this rank calls {}, and another something else", signature(),
                       operation.sequence, axis_, in_full(operation));
  fail(text);
}

// ---- progress

void MpiGroup::broken(MpiOperation& operation, std::string_view what, int code) {
  if (operation.fault_.empty()) operation.fault_ = fmt::format("{} failed: {}", what, world_->in_words(code));
}

bool MpiGroup::test_all(MpiOperation& operation) {
  while (operation.done_ < operation.requests_.size()) {
    int done = 0;
    const int code = mpi_.test(&operation.requests_[operation.done_], &done);
    if (code != 0) {
      broken(operation, "the exchange", code);
      done = 1;
    }
    if (done == 0) return false;
    ++operation.done_;
  }
  operation.requests_.clear();
  operation.done_ = 0;
  return true;
}

// Whether an emulated link lets go of the result.
bool MpiGroup::complete(MpiOperation& operation) {
  if (operation.release_ != 0 && link_now() < operation.release_) return false;
  operation.done = true;
  operation.call.keep_alive.reset();
  operation.scratch_.reset();
  recorder_->finished(operation.record_, steady_nanoseconds());
  return true;
}

bool MpiGroup::advance() {
  bool moved = false;
  bool may_agree = true;  // in order, as an emulated link serves
  for (size_t i = 0; i < under_way_.size(); ++i) {
    MpiOperation& operation = *under_way_[i];
    if (operation.done) continue;
    if (!operation.agreed_ && may_agree) moved |= agree(operation);
    may_agree = may_agree && operation.agreed_;
    // What is the library's begins in order, as it wants its collectives, since ranks agree in order.
    if (operation.stage_ == Stage::waiting && (operation.agreed_ || !done_by_library(operation))) {
      begin(operation);
      moved = true;
    }
    if (!operation.agreed_) continue;
    if (!operation.expected_.empty()) post_receives(operation);
    moved |= step(operation);
    if (!operation.fault_.empty()) fail(fmt::format("{}: {}: {}", signature(), where(operation), operation.fault_));
    if (operation.stage_ == Stage::moved) moved |= complete(operation);
  }
  while (!under_way_.empty() && under_way_.front()->done) under_way_.pop_front();
  if (messages_under_way_ != 0) moved |= advance_messages();
  return moved;
}

void MpiGroup::progress() {
  check_failure([&] { return fmt::format("progress on axis {}", axis_); });
  advance();
}

MpiGroup::Nanoseconds MpiGroup::until_release() const {
  Nanoseconds first = std::numeric_limits<Nanoseconds>::max();
  if (!link_.speed().emulated()) return first;
  const auto look = [&](const std::deque<std::shared_ptr<MpiOperation>>& queue) {
    for (const auto& operation : queue) {
      if (operation->stage_ == Stage::moved && operation->agreed_ && !operation->done)
        first = std::min(first, operation->release_);
    }
  };
  look(under_way_);
  for (const Peer& peer : peers_) look(peer.receives);
  if (first == std::numeric_limits<Nanoseconds>::max()) return first;
  return settings_->clock ? 1'000'000 : std::max<Nanoseconds>(first - steady_nanoseconds(), 1'000);
}

// What holds a call up may be an earlier one.
const MpiOperation& MpiGroup::oldest(const MpiOperation& operation) const {
  return is_message(operation.call.kind) || under_way_.empty() ? operation : *under_way_.front();
}

void MpiGroup::wait(Operation& waited, std::chrono::milliseconds timeout_of_this) {
  if (waited.done) return;
  auto& operation = static_cast<MpiOperation&>(waited);
  const auto what = [&] { return where(oldest(operation)); };
  check_failure(what);
  advance();
  if (operation.done) return;
  const Nanoseconds timeout = std::chrono::nanoseconds(timeout_of_this).count();
  told_ = told_peers_ = false;
  Nanoseconds start = steady_nanoseconds();  // of the time in which nothing moved
  Nanoseconds looked = start;
  Nanoseconds pause = shortest_pause;
  const Nanoseconds spin_end = start + spin_;
  for (;;) {
    const bool moved = advance();
    if (operation.done) return;
    const Nanoseconds time = steady_nanoseconds();
    if (moved) {
      start = looked = time;
      pause = shortest_pause;
      continue;
    }
    if (time < spin_end) continue;
    check_failure(what);
    // What an emulated link holds is not late.
    const Nanoseconds held = until_release();
    if (held != std::numeric_limits<Nanoseconds>::max()) start = looked = time;
    if (time - start >= timeout || time - looked >= look_nanoseconds) {
      looked = time;
      dump_if_asked();
      look_at_peers(oldest(operation), time - start, timeout);
    }
    sleep_for(std::min({pause, held, std::max<Nanoseconds>(start + timeout - time, 1'000)}));
    pause = std::min(2 * pause, longest_pause);
  }
}

// ---- telling what went wrong

void MpiGroup::check_failure(const std::function<std::string()>& waiting_for) {
  if (!world_->look()) return;
  const std::string text = fmt::format("{}: {} cannot complete, because another rank failed: {}", signature(),
                                       waiting_for(), world_->failure());
  record_failure(text);
  throw WorkerError(text);
}

std::vector<int64_t> MpiGroup::missing_ranks(const MpiOperation& operation) const {
  if (is_message(operation.call.kind)) return {members_[static_cast<size_t>(operation.call.root)]};
  std::vector<int64_t> missing;
  if (operation.agreed_) return missing;
  for (const int64_t member : members_) {
    if (member != members_[static_cast<size_t>(rank_)] && !world_->waits(id_, operation.sequence, member))
      missing.push_back(member);
  }
  return missing;
}

std::string MpiGroup::late_in_words(const MpiOperation& operation) const {
  return world_->late_in_words(missing_ranks(operation),
                               "nobody: all ranks have come, and the exchange between them does not end");
}

void MpiGroup::look_at_peers(const MpiOperation& operation, Nanoseconds elapsed, Nanoseconds deadline) {
  const int64_t dead = world_->first_dead();
  if (dead >= 0) {
    // It may have failed in words just before it died: that is the better story.
    check_failure([&] { return where(operation); });
    fail(fmt::format("{}: {} failed after {:.1f} s: {} died", signature(), where(operation), seconds(elapsed),
                     world_->whereabouts(dead)));
  }
  if (elapsed >= tell_peers_nanoseconds && !operation.agreed_ && !told_peers_ && !is_message(operation.call.kind)) {
    told_peers_ = true;
    world_->tell_waiting(id_, operation.sequence, members_);
  }
  if (elapsed >= deadline) {
    fail(fmt::format("{}: {} failed: its deadline of {:.1f} s is over ({:.1f} s have passed). Did not arrive: {}{}",
                     signature(), where(operation), seconds(deadline), seconds(elapsed), late_in_words(operation),
                     operation.fault_.empty() ? "" : "; " + operation.fault_));
  }
  // A deadline may be minutes long; whoever looks at the log before it wants to know.
  if (elapsed < std::min(tell_nanoseconds, deadline / 2) || told_) return;
  told_ = true;
  log::warning("{} has waited {:.1f} s for {}, until {:.1f} s at most: {}", signature(), seconds(elapsed),
               where(operation), seconds(deadline), late_in_words(operation));
}

void MpiGroup::fail(const std::string& message) {
  record_failure(message);
  if (world_->fail(message)) log::error("last calls of {}:\n{}", signature(), flight_record());
  throw WorkerError(message);
}

void MpiGroup::refuse_numbers(const std::string& text) {
  world_->fail(text);
  throw WorkerError(text);
}

void MpiGroup::abort(const std::string& message, bool with_record) noexcept {
  try {
    if (with_record) record_failure(message);
    if (world_->fail(fmt::format("{}: {}", signature(), message)) && with_record)
      log::error("last calls of {}:\n{}", signature(), flight_record());
  } catch (...) {
    world_->fail("a rank gave up, and had no memory left to say why");
  }
}

// What is under way will not be done any more.
void MpiGroup::record_failure(std::string_view message) {
  const Nanoseconds time = steady_nanoseconds();
  const auto mark = [&](const std::deque<std::shared_ptr<MpiOperation>>& queue) {
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
