// Posting, waiting, and telling what went wrong; see nccl_group.h.
#include "comm/nccl/nccl_group.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

namespace trireme::comm {
namespace {

constexpr int64_t spin_nanoseconds = 20'000;
constexpr int64_t shortest_pause = 5'000;
constexpr int64_t longest_pause = 200'000;
constexpr int64_t launch_nanoseconds = 200'000;
constexpr int64_t look_nanoseconds = 100'000'000;
constexpr int64_t tell_peers_nanoseconds = 300'000'000;
constexpr int64_t tell_nanoseconds = 5'000'000'000;  // of waiting, before it is told
// So long a rank whose communicator has broken waits for the word of one that knows why.
constexpr int64_t patience_nanoseconds = 1'000'000'000;

double seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

void sleep_for(int64_t nanoseconds) { std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds)); }

bool is_uneven_exchange(const Call& call) { return call.kind == Kind::all_to_all && call.extents != nullptr; }

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<NcclWorld> world, GroupOptions options)
    : Group(std::move(options)), world_(std::move(world)), nccl_(world_->nccl()) {
  const std::string_view who(reinterpret_cast<const char*>(members_.data()), members_.size() * sizeof(int64_t));
  const std::string stem = fmt::format("{}/{}", axis_, hash_hex(who));
  const int64_t instance = world_->next_instance(stem);
  key_ = fmt::format("{}/{}", stem, instance);
  std::vector<int64_t> all;
  for (int64_t r = 0; r < size_; ++r) all.push_back(r);
  Channel& channel = channels_.emplace_back(make_channel(key_, std::move(all)));
  enroll_in_recorder(instance);
  world_->post(fmt::format("came/{}/{}", key_, rank_), "");
  const Nanoseconds start = steady_nanoseconds();
  try {
    while (!connect(channel)) {
      const std::string what = fmt::format("making the group of axis {}", axis_);
      check_failure([&] { return what; });
      look_at_peers(channel, what, steady_nanoseconds() - start, std::chrono::nanoseconds(timeout_).count());
      sleep_for(longest_pause);
    }
  } catch (...) {
    end_channels();
    throw;
  }
}

NcclGroup::~NcclGroup() {
  // A communicator in use, or whose peers may never come to its end, cannot be freed with them.
  const bool broken = !world_->failure().empty() || std::uncaught_exceptions() != 0;
  for (Channel& channel : channels_) drop(channel, broken || !channel.under_way.empty());
}

std::shared_ptr<Group> NcclGroup::subgroup(GroupOptions options) {
  return std::make_shared<NcclGroup>(world_, std::move(options));
}

// Of the host: what a caller keeps on the device it takes from torch.
Group::Memory NcclGroup::allocate(std::string_view name, int64_t each, bool /*one_for_all*/) {
  return allocate_alone(name, each);
}

// ---- channels

NcclGroup::Channel NcclGroup::make_channel(std::string key, std::vector<int64_t> ranks) const {
  Channel channel;
  channel.key = std::move(key);
  channel.ranks = std::move(ranks);
  channel.index = std::find(channel.ranks.begin(), channel.ranks.end(), rank_) - channel.ranks.begin();
  channel.stream = world_->device().make_stream();
  return channel;
}

// Messages of a pair go on a channel of their own for each direction, so that no order of them locks ranks up.
NcclGroup::Channel& NcclGroup::channel_of(const Call& call) {
  if (!is_message(call.kind)) return channels_.front();
  const auto pair = call.kind == Kind::send ? std::pair(rank_, call.root) : std::pair(call.root, rank_);
  const auto [found, fresh] = of_pair_.try_emplace(pair, channels_.size());
  if (fresh)
    channels_.push_back(
        make_channel(fmt::format("{}/from {} to {}", key_, pair.first, pair.second), {pair.first, pair.second}));
  return channels_[found->second];
}

// True once calls can be put on it. The first of its ranks makes the id.
bool NcclGroup::connect(Channel& channel) {
  if (channel.comm == nullptr) {
    const std::string id_key = fmt::format("id/{}", channel.key);
    std::string id(nccl_id_bytes, '\0');
    if (channel.index == 0) {
      world_->require(nccl_.make_id(reinterpret_cast<unsigned char*>(id.data())), "ncclGetUniqueId");
      world_->post(id_key, id);
    } else {
      const auto given = world_->read(id_key);
      if (!given) return false;
      id = *given;
    }
    const int code = nccl_.make_comm(reinterpret_cast<const unsigned char*>(id.data()), static_cast<int>(channel.index),
                                     static_cast<int>(channel.ranks.size()), &channel.comm);
    world_->require(code, "ncclCommInitRankConfig");
    channel.busy = true;
  }
  return settled(channel);
}

// Whether the library's last call on it has ended; it throws when that went wrong.
bool NcclGroup::settled(Channel& channel) {
  if (!channel.busy) return true;
  const int code = nccl_.state(channel.comm);
  if (code == nccl_in_progress) return false;
  world_->require(code, fmt::format("a call on axis {}", axis_));
  channel.busy = false;
  return true;
}

void NcclGroup::drop(Channel& channel, bool abort) noexcept {
  if (channel.comm != nullptr) {
    if (abort)
      nccl_.abort_comm(channel.comm);
    else
      nccl_.free_comm(channel.comm);
    channel.comm = nullptr;
  }
}

// What is on the streams ends, so that nothing waits for a peer any more: the device can be used, and the process end.
void NcclGroup::end_channels() noexcept {
  for (Channel& channel : channels_) drop(channel, true);
}

// ---- posting

std::shared_ptr<Operation> NcclGroup::post(Call call) {
  auto operation = std::make_shared<NcclOperation>(std::move(call));
  prepare(*operation);
  check_failure([&] { return fmt::format("{} on axis {}", describe(*operation), axis_); });
  Channel& channel = channel_of(operation->call);
  operation->sequence = ++channel.sequence;
  // Of an uneven all_to_all each rank has counts of its own, which are compared pair by pair.
  Words& words = operation->mine_;
  words.count = is_uneven_exchange(operation->call) ? 0 : static_cast<uint64_t>(operation->call.count);
  words.packed = is_message(operation->call.kind) ? static_cast<uint64_t>(operation->call.dtype) : operation->packed_;
  words.detail = is_message(operation->call.kind) ? 0 : detail_of(*operation);
  words.shown = operation->packed_;
  words.shown_count = static_cast<uint64_t>(operation->call.count);
  operation->posted_ = record(*operation);
  operation->given_ = world_->take_event();
  world_->require(nccl_.record(operation->given_, world_->device().compute_stream()), "recording an event");
  plan(channel, operation);
  channel.under_way.push_back(operation);
  // The host may compute for long after this, so all steps should be on the stream before: the library is through with
  // one in some microseconds, unless it makes a connection first.
  advance();
  const Nanoseconds end = steady_nanoseconds() + launch_nanoseconds;
  while (channel.launched < channel.under_way.size() && steady_nanoseconds() < end) {
    if (!advance()) std::this_thread::yield();
  }
  return operation;
}

// ---- progress

bool NcclGroup::has_come(void* event) const {
  int done = 0;
  world_->require(nccl_.query(event, &done), "what was put on the device's stream");
  return done != 0;
}

// Puts on the stream what can be put there now.
bool NcclGroup::launch(Channel& channel) {
  bool moved = false;
  while (channel.launched < channel.under_way.size()) {
    NcclOperation& operation = *channel.under_way[channel.launched];
    if (!settled(channel)) break;
    moved = true;
    if (operation.next_ == operation.steps_.size())
      ++channel.launched;
    else
      operation.steps_[operation.next_++]();
  }
  return moved;
}

bool NcclGroup::advance(Channel& channel) {
  if (channel.under_way.empty() || !connect(channel)) return false;
  // What went wrong since the last call: a connection that broke is told here and nowhere else.
  if (!channel.busy) world_->require(nccl_.state(channel.comm), fmt::format("the communicator of axis {}", axis_));
  bool moved = launch(channel);
  for (size_t i = 0; i < channel.under_way.size(); ++i) {
    NcclOperation& operation = *channel.under_way[i];
    if (!operation.agreed_ && !compare(channel, operation)) break;
    if (operation.counted_ != nullptr && !operation.counts_agree_ && has_come(operation.counted_))
      check_counts(operation);
  }
  while (channel.launched != 0 && has_come(channel.under_way.front()->ended_)) {
    const std::shared_ptr<NcclOperation> operation = channel.under_way.front();
    if (!operation->agreed_) compare(channel, *operation);
    if (operation->counted_ != nullptr && !operation->counts_agree_) check_counts(*operation);
    channel.under_way.pop_front();
    --channel.launched;
    complete(*operation);
    moved = true;
  }
  return moved;
}

bool NcclGroup::advance() {
  bool moved = false;
  for (size_t i = 0; i < channels_.size(); ++i) {
    try {
      moved |= advance(channels_[i]);
    } catch (const WorkerError& error) {
      if (!world_->failure().empty()) throw;
      tell_broken(channels_[i], error.what());
    }
  }
  return moved;
}

// The library has failed. A peer that goes breaks connections first; who went is known a moment later.
void NcclGroup::tell_broken(Channel& channel, const std::string& message) {
  const std::string what =
      channel.under_way.empty() ? fmt::format("a call on axis {}", axis_) : where(*channel.under_way.front());
  const Nanoseconds start = steady_nanoseconds();
  for (Nanoseconds elapsed = 0; elapsed < patience_nanoseconds; elapsed = steady_nanoseconds() - start) {
    world_->look(/*now=*/true);
    check_failure([&] { return what; });
    look_at_peers(channel, what, elapsed, 2 * patience_nanoseconds);
    sleep_for(look_nanoseconds / 4);
  }
  fail(fmt::format("{} ({})", message, what));
}

void NcclGroup::progress() {
  check_failure([&] { return fmt::format("progress on axis {}", axis_); });
  advance();
  for (Channel& channel : channels_) {
    if (!channel.under_way.empty() &&
        steady_nanoseconds() - channel.under_way.front()->posted_ > tell_peers_nanoseconds)
      tell_waiting(channel);
  }
}

// Calls that differ; true when the words have come and are the same.
bool NcclGroup::compare(Channel& channel, NcclOperation& operation) {
  if (operation.compared_ == nullptr || !has_come(operation.compared_)) return false;
  const Words& mine = operation.mine_;
  for (size_t i = 0; i < channel.ranks.size(); ++i) {
    Words theirs;
    std::memcpy(&theirs, operation.words_.data + i * sizeof(Words), sizeof(Words));
    if (theirs.packed == mine.packed && theirs.count == mine.count && theirs.detail == mine.detail) continue;
    const int64_t self = members_[static_cast<size_t>(rank_)];
    const int64_t other = members_[static_cast<size_t>(channel.ranks[i])];
    const std::string they = comm::describe(theirs.shown, static_cast<int64_t>(theirs.shown_count));
    const bool details = theirs.packed == mine.packed && theirs.count == mine.count;
    const auto what = is_message(operation.call.kind)
                          ? fmt::format("message #{} from rank {} to rank {}", operation.sequence,
                                        members_[static_cast<size_t>(channel.ranks[0])],
                                        members_[static_cast<size_t>(channel.ranks[1])])
                          : fmt::format("call #{}", operation.sequence);
    fail(fmt::format("{}: {} on axis {} differs: rank {} on {} calls {}, rank {} on {} calls {}{}", signature(), what,
                     axis_, self, world_->host(self), describe(operation), other, world_->host(other), they,
                     details ? ", with other counts of tensors or ranks, another factor or other shapes" : ""));
  }
  operation.agreed_ = true;
  recorder_->started(operation.record_, steady_nanoseconds());
  return true;
}

void NcclGroup::check_counts(NcclOperation& operation) {
  for (int64_t r = 0; r < size_; ++r) {
    int64_t given = 0;
    std::memcpy(&given, operation.counts_.data + (size_ + r) * static_cast<int64_t>(sizeof given), sizeof given);
    const int64_t expected = operation.out_.block(r);
    if (given == expected) continue;
    const int64_t self = members_[static_cast<size_t>(rank_)], other = members_[static_cast<size_t>(r)];
    fail(fmt::format(
        "{}: all_to_all #{} on axis {} differs: rank {} on {} gives {} elements to rank {}; rank {} on {} expects {} "
        "from it",
        signature(), operation.sequence, axis_, other, world_->host(other), given, self, self, world_->host(self),
        expected));
  }
  operation.counts_agree_ = true;
}

void NcclGroup::complete(NcclOperation& operation) {
  for (const NcclOperation::Staged& part : operation.staged_) {
    if (part.comes_back) std::memcpy(part.host, part.pinned.data, static_cast<size_t>(part.bytes));
    world_->give_pinned(part.pinned);
  }
  for (const NcclWorld::Pinned& memory : {operation.words_, operation.counts_})
    if (memory.data != nullptr) world_->give_pinned(memory);
  for (void* event : {operation.given_, operation.compared_, operation.counted_, operation.ended_})
    if (event != nullptr) world_->give_event(event);
  operation.staged_.clear();
  operation.scratch_.clear();
  operation.steps_.clear();
  operation.call.keep_alive.reset();
  operation.done = true;
  recorder_->finished(operation.record_, steady_nanoseconds());
}

void NcclGroup::wait(Operation& waited, std::chrono::milliseconds timeout_of_this) {
  if (waited.done) return;
  auto& operation = static_cast<NcclOperation&>(waited);
  Channel& channel = channel_of(operation.call);
  // What holds a call up may be an earlier one.
  const auto what = [&] { return where(channel.under_way.empty() ? operation : *channel.under_way.front()); };
  const Nanoseconds timeout = std::chrono::nanoseconds(timeout_of_this).count();
  told_ = false;
  Nanoseconds start = steady_nanoseconds();  // of the time in which nothing moved
  Nanoseconds looked = start;
  Nanoseconds pause = shortest_pause;
  const Nanoseconds spin_end = start + spin_nanoseconds;
  for (;;) {
    check_failure(what);
    const bool moved = advance();
    if (operation.done) return;
    const Nanoseconds time = steady_nanoseconds();
    if (moved) {
      start = looked = time;
      pause = shortest_pause;
      continue;
    }
    if (time < spin_end) continue;
    if (time - start >= timeout || time - looked >= look_nanoseconds) {
      looked = time;
      dump_if_asked();
      look_at_peers(channel, what(), time - start, timeout);
    }
    sleep_for(std::min(pause, std::max<Nanoseconds>(start + timeout - time, 1'000)));
    pause = std::min(2 * pause, longest_pause);
  }
}

// ---- telling what went wrong

void NcclGroup::check_failure(const std::function<std::string()>& waiting_for) {
  if (!world_->look()) return;
  end_channels();
  const std::string text = fmt::format("{}: {} cannot complete, because another rank failed: {}", signature(),
                                       waiting_for(), world_->failure());
  record_failure(text);
  throw WorkerError(text);
}

// That this rank waits for the oldest call of a channel.
void NcclGroup::tell_waiting(Channel& channel) {
  if (channel.under_way.empty() || channel.under_way.front()->told_peers_) return;
  NcclOperation& operation = *channel.under_way.front();
  operation.told_peers_ = true;
  world_->post(fmt::format("waits/{}/{}", channel.key, rank_), std::to_string(operation.sequence));
}

// World ranks that have not said that they wait, too. Also once all have come: steps of a call that follow others are
// put on a stream by its host, and that may have been stopped.
std::vector<int64_t> NcclGroup::missing_ranks(const Channel& channel) {
  std::vector<int64_t> missing;
  for (const int64_t r : channel.ranks) {
    if (r == rank_) continue;
    const bool meeting = channel.under_way.empty();
    const auto said = world_->read(fmt::format("{}/{}/{}", meeting ? "came" : "waits", channel.key, r));
    if (!said || (!meeting && std::stoull(*said) < channel.under_way.front()->sequence))
      missing.push_back(members_[static_cast<size_t>(r)]);
  }
  return missing;
}

std::string NcclGroup::late_in_words(const Channel& channel) {
  return world_->late_in_words(missing_ranks(channel),
                               "nobody: all ranks have come, and what is on the devices' streams does not end");
}

void NcclGroup::look_at_peers(Channel& channel, const std::string& what, Nanoseconds elapsed, Nanoseconds deadline) {
  const int64_t dead = world_->first_dead();
  if (dead >= 0) {
    // It may have failed in words just before it died: that is the better story.
    world_->look(true);
    check_failure([&] { return what; });
    fail(fmt::format("{}: {} failed after {:.1f} s: {} died", signature(), what, seconds(elapsed),
                     world_->whereabouts(dead)));
  }
  if (world_->board_is_lost())
    fail(
        fmt::format("{}: {} failed after {:.1f} s: the store at which the ranks met was lost: rank 0, which serves it, "
                    "died or cannot be reached",
                    signature(), what, seconds(elapsed)));
  if (elapsed >= tell_peers_nanoseconds) tell_waiting(channel);
  if (elapsed >= deadline) {
    fail(fmt::format("{}: {} failed: its deadline of {:.1f} s is over ({:.1f} s have passed). Did not arrive: {}",
                     signature(), what, seconds(deadline), seconds(elapsed), late_in_words(channel)));
  }
  // A deadline may be minutes long; whoever looks at the log before it wants to know.
  if (elapsed < std::min(tell_nanoseconds, deadline / 2) || told_) return;
  told_ = true;
  log::warning("{} has waited {:.1f} s for {}, until {:.1f} s at most: {}", signature(), seconds(elapsed), what,
               seconds(deadline), late_in_words(channel));
}

void NcclGroup::fail(const std::string& message) {
  record_failure(message);
  if (world_->fail(message)) log::error("last calls of {}:\n{}", signature(), flight_record());
  end_channels();
  throw WorkerError(message);
}

void NcclGroup::refuse_numbers(const std::string& text) { fail(text); }

void NcclGroup::abort(const std::string& message, bool with_record) noexcept {
  try {
    if (with_record) record_failure(message);
    if (world_->fail(fmt::format("{}: {}", signature(), message)) && with_record)
      log::error("last calls of {}:\n{}", signature(), flight_record());
  } catch (...) {
    world_->fail("a rank gave up, and had no memory left to say why");
  }
  end_channels();
}

// What is under way will not be done any more.
void NcclGroup::record_failure(std::string_view message) {
  const Nanoseconds time = steady_nanoseconds();
  for (const Channel& channel : channels_) {
    for (const auto& operation : channel.under_way) {
      if (!operation->done) recorder_->finished(operation->record_, time, FlightState::failed);
    }
  }
  recorder_->set_failure(message);
}

}  // namespace trireme::comm
