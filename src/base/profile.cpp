#include "base/profile.h"

#include <unistd.h>

#include <memory>
#include <mutex>

#include "base/clock.h"

namespace trireme::profile {
namespace {

// The events of a thread. It outlives the thread, since what it did may be asked for later.
struct Buffer {
  std::vector<Event> open;  // touched by the thread alone
  std::mutex mutex;         // of what follows
  Thread thread;
};

struct Registry {
  std::mutex mutex;
  uint64_t recordings = 0;
  std::vector<std::shared_ptr<Buffer>> buffers;
};
Registry& registry() {
  static Registry all;
  return all;
}

Buffer& mine() {
  thread_local const std::shared_ptr<Buffer> buffer = [] {
    auto made = std::make_shared<Buffer>();
    made->thread.id = ::gettid();
    made->thread.name = "thread";
    const std::lock_guard lock(registry().mutex);
    registry().buffers.push_back(made);
    return made;
  }();
  return *buffer;
}

}  // namespace

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, 7> names = {"forward",       "backward", "recompute", "optimizer",
                                                     "communication", "data",     "other"};
  return names[static_cast<size_t>(phase)];
}

std::string_view name_of(Kind kind) {
  constexpr std::array<std::string_view, 5> names = {"step", "section", "operation", "aten", "node"};
  return names[static_cast<size_t>(kind)];
}

void start() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& buffer : all.buffers) {
    const std::lock_guard inner(buffer->mutex);
    buffer->thread.events.clear();
  }
  detail::recording.store(++all.recordings, std::memory_order_release);
}

std::vector<Thread> stop() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  detail::recording.store(0, std::memory_order_release);
  std::vector<Thread> threads;
  for (const auto& buffer : all.buffers) {
    const std::lock_guard inner(buffer->mutex);
    if (buffer->thread.events.empty()) continue;
    threads.push_back({buffer->thread.id, buffer->thread.name, std::move(buffer->thread.events)});
    buffer->thread.events.clear();
  }
  // Of a thread that has ended nothing more will come.
  std::erase_if(all.buffers, [](const auto& buffer) { return buffer.use_count() == 1; });
  return threads;
}

void name_this_thread(std::string name) {
  Buffer& buffer = mine();
  const std::lock_guard lock(buffer.mutex);
  buffer.thread.name = std::move(name);
}

namespace detail {

std::atomic<uint64_t> recording{0};

Phase current_phase() {
  const std::vector<Event>& open = mine().open;
  return open.empty() ? Phase::other : open.back().phase;
}

uint64_t begin(Kind kind, Phase phase, std::string_view name, const Work& work) {
  const uint64_t number = recording.load(std::memory_order_acquire);
  if (number == 0) return 0;  // it has just ended
  Buffer& buffer = mine();
  if (phase == Phase::forward && !buffer.open.empty()) {
    const Phase around = buffer.open.back().phase;
    if (around == Phase::backward || around == Phase::recompute) phase = Phase::recompute;
  }
  Event& event = buffer.open.emplace_back();
  event.kind = kind;
  event.phase = phase;
  event.name = name;
  event.of = work.of;
  event.shape = work.shape;
  event.flops = work.flops;
  event.bytes = work.bytes;
  event.begin_ns = steady_nanoseconds();
  return number;
}

void end(uint64_t number) noexcept {
  const int64_t now = steady_nanoseconds();
  Buffer& buffer = mine();
  Event event = std::move(buffer.open.back());
  buffer.open.pop_back();
  const std::lock_guard lock(buffer.mutex);
  if (recording.load(std::memory_order_acquire) != number) return;
  event.end_ns = now;
  buffer.thread.events.push_back(std::move(event));
}

}  // namespace detail
}  // namespace trireme::profile
