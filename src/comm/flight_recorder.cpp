#include "comm/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/host.h"
#include "comm/flight_memory.h"

namespace trireme::comm {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

size_t bytes_for(int64_t capacity) {
  return sizeof(FlightRecorder::Memory) + static_cast<size_t>(capacity - 1) * sizeof(FlightRecorder::Memory::Record);
}

void* map(int fd, size_t bytes) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (at == MAP_FAILED) throw_errno("map", "the flight recorder", errno);
  return at;
}

}  // namespace

std::string_view name_of(FlightState state) {
  switch (state) {
    case FlightState::posted:
      return "posted";
    case FlightState::started:
      return "started";
    case FlightState::done:
      return "done";
    case FlightState::failed:
      return "failed";
  }
  return "?";
}

std::filesystem::path flight_path(const std::filesystem::path& folder, int64_t rank) {
  return folder / fmt::format("rank-{:05}.flight", rank);
}

FlightRecorder::FlightRecorder(int64_t capacity) : bytes_(bytes_for(capacity)) {
  TRIREME_CHECK(capacity > 0, "a flight recorder of {} records", capacity);
  memory_ = static_cast<Memory*>(map(-1, bytes_));
  memory_->capacity = capacity;
}

FlightRecorder::FlightRecorder(const std::filesystem::path& folder, int64_t capacity, int64_t rank, int64_t world_size)
    : bytes_(bytes_for(capacity)), folder_(folder) {
  TRIREME_CHECK(capacity > 0, "a flight recorder of {} records", capacity);
  make_directories(folder);
  const std::filesystem::path path = flight_path(folder, rank);
  // A reader of the file before keeps what it has: a new file takes its place.
  ::unlink(path.c_str());
  const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) throw_errno("make", path.string(), errno);
  // Its blocks are taken now: a full disk would otherwise be a SIGBUS in the middle of a run.
  const int failed = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes_));
  if (failed != 0) throw_errno("make", path.string(), failed);
  memory_ = static_cast<Memory*>(map(fd.get(), bytes_));
  memory_->capacity = capacity;
  memory_->rank = rank;
  memory_->world_size = world_size;
  memory_->wall_minus_steady =
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count() - steady_nanoseconds();
  memory_->process = this_process();
  const std::string host = host_name();
  std::memcpy(memory_->host, host.data(), std::min(host.size(), sizeof memory_->host - 1));
  memory_->magic = Memory::expected_magic;
}

FlightRecorder::~FlightRecorder() { ::munmap(memory_, bytes_); }

int64_t FlightRecorder::capacity() const { return memory_->capacity; }

int32_t FlightRecorder::add_group(const FlightGroup& group) {
  const int64_t index = std::min(memory_->groups.load(relaxed), Memory::max_groups - 1);
  Memory::Group& to = memory_->group[index];
  const size_t length = std::min(group.axis.size(), sizeof to.axis - 1);
  std::memcpy(to.axis, group.axis.data(), length);
  to.axis[length] = '\0';
  to.rank = group.rank;
  to.instance = group.instance;
  to.generation = group.generation;
  to.size = std::min(static_cast<int64_t>(group.members.size()), Memory::max_members);
  for (int64_t i = 0; i < to.size; ++i) to.members[i] = static_cast<int16_t>(group.members[static_cast<size_t>(i)]);
  memory_->groups.store(index + 1, std::memory_order_release);
  return static_cast<int32_t>(index);
}

int64_t FlightRecorder::add(const FlightRecord& from) {
  const int64_t number = memory_->recorded.load(relaxed) + 1;
  Memory::Record& to = memory_->record[(number - 1) % memory_->capacity];
  to.number.store(0, std::memory_order_release);
  to.packed.store(from.packed, relaxed);
  to.sequence.store(from.sequence, relaxed);
  to.count.store(from.count, relaxed);
  to.bytes.store(from.bytes, relaxed);
  to.posted.store(from.posted, relaxed);
  to.started.store(from.started, relaxed);
  to.finished.store(from.finished, relaxed);
  to.group.store(from.group, relaxed);
  to.state.store(static_cast<uint32_t>(from.state), relaxed);
  const auto dims = std::min(static_cast<int64_t>(from.shape.size()), flight_dims);
  to.dims.store(static_cast<int32_t>(dims), relaxed);
  for (int64_t d = 0; d < dims; ++d) to.shape[d].store(from.shape[static_cast<size_t>(d)], relaxed);
  to.number.store(number, std::memory_order_release);
  memory_->recorded.store(number, std::memory_order_release);
  return number;
}

void FlightRecorder::started(int64_t number, int64_t time) {
  Memory::Record& record = memory_->record[(number - 1) % memory_->capacity];
  if (record.number.load(relaxed) != number) return;  // long overwritten
  record.started.store(time, relaxed);
  record.state.store(static_cast<uint32_t>(FlightState::started), relaxed);
}

void FlightRecorder::finished(int64_t number, int64_t time, FlightState state) {
  Memory::Record& record = memory_->record[(number - 1) % memory_->capacity];
  if (record.number.load(relaxed) != number) return;
  record.finished.store(time, relaxed);
  record.state.store(static_cast<uint32_t>(state), relaxed);
}

void FlightRecorder::set_failure(std::string_view message) {
  if (memory_->failed.load(relaxed) != 0) return;
  std::memcpy(memory_->failure, message.data(), std::min(message.size(), sizeof memory_->failure - 1));
  memory_->failed.store(1, std::memory_order_release);
}

std::vector<FlightRecord> FlightRecorder::newest(int64_t most) const {
  std::vector<FlightRecord> records;
  const int64_t last = memory_->recorded.load(std::memory_order_acquire);
  for (int64_t number = std::max<int64_t>(last - std::min(most, capacity()), 0) + 1; number <= last; ++number) {
    const Memory::Record& from = memory_->record[(number - 1) % memory_->capacity];
    if (from.number.load(std::memory_order_acquire) != number) continue;
    FlightRecord record = copy_of(from);
    if (from.number.load(std::memory_order_acquire) == number) records.push_back(std::move(record));
  }
  return records;
}

}  // namespace trireme::comm
