#include "comm/flight_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/host.h"
#include "comm/flight_memory.h"
#include "comm/flight_progress.h"

namespace trireme::comm {
namespace {

using nlohmann::json;
using Memory = FlightRecorder::Memory;

std::string clock_time(int64_t nanoseconds_since_1970) {
  const std::time_t seconds = nanoseconds_since_1970 / 1'000'000'000;
  std::tm broken{};
  ::gmtime_r(&seconds, &broken);
  return fmt::format("{:02}:{:02}:{:02}.{:06}", broken.tm_hour, broken.tm_min, broken.tm_sec,
                     nanoseconds_since_1970 / 1000 % 1'000'000);
}

std::string_view in_words(ProcessState state) {
  switch (state) {
    case ProcessState::alive:
      return "alive";
    case ProcessState::stopped:
      return "stopped";
    case ProcessState::dead:
      return "ended";
    case ProcessState::unknown:
      break;
  }
  return "not on this machine";
}

const FlightGroup& group_of(const FlightLog& log, const FlightRecord& record) {
  static const FlightGroup none{"?", 0, {}, 0, 0};
  const auto index = static_cast<size_t>(record.group);
  return index < log.groups.size() ? log.groups[index] : none;
}

json to_json(const FlightLog& log, const FlightRecord& record) {
  const Unpacked call = unpack(record.packed);
  const FlightGroup& group = group_of(log, record);
  const auto time = [&](int64_t at) { return at == 0 ? json() : json((at + log.wall_minus_steady) / 1000); };
  json entry = {{"number", record.number},
                {"axis", group.axis},
                {"group_ranks", group.members},
                {"operation", name_of(call.kind)},
                {"sequence", record.sequence},
                {"dtype", trireme::name_of(call.dtype)},
                {"elements", record.count},
                {"bytes", record.bytes},
                {"tensors", call.tensors},
                {"uneven", call.uneven},
                {"shape", record.shape},
                {"state", name_of(record.state)},
                {"posted_us", time(record.posted)},
                {"started_us", time(record.started)},
                {"finished_us", time(record.finished)}};
  if (is_reduction(call.kind)) entry["operator"] = name_of(call.op);
  if (has_root(call.kind)) entry["root"] = call.root;
  if (is_message(call.kind)) entry["peer"] = call.root;
  return entry;
}

std::string line_of(const FlightLog& log, const FlightRecord& record) {
  std::string text = fmt::format("  {}  {} #{} on axis {}", clock_time(record.posted + log.wall_minus_steady),
                                 describe(record.packed, record.count), record.sequence, group_of(log, record).axis);
  if (!record.shape.empty()) text += fmt::format(", shape [{}]", fmt::join(record.shape, ", "));
  text += fmt::format(", {}", name_of(record.state));
  const auto milliseconds = [](int64_t from, int64_t to) { return static_cast<double>(to - from) * 1e-6; };
  if (record.started != 0)
    text += fmt::format(", all came after {:.3f} ms", milliseconds(record.posted, record.started));
  if (record.finished != 0)
    text += fmt::format(", ended after {:.3f} ms", milliseconds(record.posted, record.finished));
  return text + "\n";
}

}  // namespace

FlightLog read_flight_log(const std::filesystem::path& file) {
  const std::string bytes = read_file(file);
  const auto refuse = [&] { throw_input("{} is not a flight recorder of this build of trireme", file.string()); };
  if (bytes.size() < sizeof(Memory) || bytes.size() > (size_t{1} << 32)) refuse();
  std::vector<std::byte> copied(bytes.size() + alignof(Memory));
  void* at = copied.data();
  size_t space = copied.size();
  std::align(alignof(Memory), bytes.size(), at, space);
  std::memcpy(at, bytes.data(), bytes.size());
  const auto& memory = *static_cast<const Memory*>(at);
  if (memory.magic != Memory::expected_magic || memory.capacity < 1 ||
      bytes.size() != sizeof(Memory) + static_cast<size_t>(memory.capacity - 1) * sizeof(Memory::Record)) {
    refuse();
  }
  FlightLog log;
  log.rank = memory.rank;
  log.world_size = memory.world_size;
  log.pid = memory.process.pid;
  log.host = memory.host;
  log.process = log.host == host_name() ? state_of(memory.process) : ProcessState::unknown;
  log.wall_minus_steady = memory.wall_minus_steady;
  if (memory.failed.load() != 0) log.failure = memory.failure;
  log.recorded = memory.recorded.load();
  for (int64_t g = 0; g < std::min(memory.groups.load(), Memory::max_groups); ++g) {
    const Memory::Group& from = memory.group[g];
    log.groups.push_back(
        {from.axis, from.rank, {from.members, from.members + from.size}, from.instance, from.generation});
  }
  // Of a ring that is full the oldest place may be being written over.
  const int64_t first = std::max<int64_t>(log.recorded - memory.capacity + 1, 0) + 1;
  for (int64_t number = first; number <= log.recorded; ++number) {
    const Memory::Record& record = memory.record[(number - 1) % memory.capacity];
    if (record.number.load() == number) log.records.push_back(copy_of(record));
  }
  return log;
}

std::vector<FlightLog> read_flight_logs(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() == ".flight") files.push_back(entry.path());
  }
  if (files.empty()) {
    throw_input(
        "{} holds no flight recorders; a run with two or more workers and comm.flight_recorder above 0 writes them",
        folder.string());
  }
  std::vector<FlightLog> logs;
  for (const auto& file : files) logs.push_back(read_flight_log(file));
  std::sort(logs.begin(), logs.end(), [](const FlightLog& a, const FlightLog& b) { return a.rank < b.rank; });
  return logs;
}

json to_json(const std::vector<FlightLog>& logs) {
  json result = {{"time", utc_now()}, {"ranks", json::array()}, {"groups", json::array()}};
  for (const FlightLog& log : logs) {
    json operations = json::array();
    for (const FlightRecord& record : log.records) operations.push_back(to_json(log, record));
    json rank = {{"rank", log.rank},        {"world_size", log.world_size},     {"host", log.host},
                 {"pid", log.pid},          {"process", in_words(log.process)}, {"recorded", log.recorded},
                 {"operations", operations}};
    if (!log.failure.empty()) rank["failure"] = log.failure;
    result["ranks"].push_back(std::move(rank));
  }
  for (const GroupProgress& group : group_progress(logs)) {
    json entry = {{"axis", group.axis},         {"ranks", group.members},
                  {"instance", group.instance}, {"generation", group.generation},
                  {"behind", group.behind},     {"without_record", group.without_record},
                  {"differs", group.differs}};
    for (const RankProgress& rank : group.ranks) {
      entry["progress"].push_back({{"rank", rank.rank}, {"posted", rank.posted}, {"done", rank.done}});
    }
    result["groups"].push_back(std::move(entry));
  }
  return result;
}

std::string flight_report(const std::vector<FlightLog>& logs, int64_t last) {
  std::string text;
  for (const GroupProgress& group : group_progress(logs)) text += to_text(group) + "\n";
  for (const FlightLog& log : logs) {
    text += fmt::format("rank {} (pid {} on {}, {}), {} operations\n", log.rank, log.pid, log.host,
                        in_words(log.process), log.recorded);
    if (!log.failure.empty()) text += fmt::format("  failed: {}\n", log.failure);
    const auto shown = std::min<size_t>(log.records.size(), static_cast<size_t>(std::max<int64_t>(last, 0)));
    for (size_t i = log.records.size() - shown; i < log.records.size(); ++i) text += line_of(log, log.records[i]);
  }
  return text;
}

std::string flight_summary(const std::vector<FlightLog>& logs, std::string_view indent) {
  std::string text;
  for (const GroupProgress& group : group_progress(logs)) {
    const std::string line = summary(group);
    if (!line.empty()) text += fmt::format("{}axis {}: {}\n", indent, group.axis, line);
  }
  return text;
}

void remove_flight_logs(const std::filesystem::path& folder, int64_t first_rank, int64_t count, int64_t world_size) {
  std::error_code ignored;
  for (int64_t r = first_rank; r < first_rank + count; ++r) std::filesystem::remove(flight_path(folder, r), ignored);
  if (first_rank != 0) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    // Names have five digits, so they sort as the ranks do.
    if (entry.path().extension() == ".flight" && entry.path() >= flight_path(folder, world_size)) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
}

namespace {
std::atomic<bool> g_dump_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);
}  // namespace

void request_flight_dump() noexcept { g_dump_requested.store(true); }
bool flight_dump_requested() noexcept { return g_dump_requested.load(std::memory_order_relaxed); }
bool take_flight_dump_request() noexcept { return g_dump_requested.exchange(false); }

std::filesystem::path dump_flight(const std::filesystem::path& folder, std::string_view why) {
  json dump = to_json(read_flight_logs(folder));
  dump["why"] = why;
  std::string name = "dump-" + utc_now() + ".json";
  std::replace(name.begin(), name.end(), ':', '-');  // some file systems take no colon
  const std::filesystem::path path = folder / name;
  write_file_durably(path, dump.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  return path;
}

}  // namespace trireme::comm
