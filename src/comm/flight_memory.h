// Private to comm: how a flight recorder lies in its file. All bytes zero is the state before the first record.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "comm/flight_recorder.h"
#include "comm/process_state.h"

namespace trireme::comm {

struct FlightRecorder::Memory {
  static constexpr uint64_t expected_magic = 0x3130746867696c66;  // "flight01"; changes with the layout
  static constexpr int64_t max_groups = 64;
  static constexpr int64_t max_members = 256;

  struct Group {
    char axis[40];
    int64_t rank;
    int64_t instance;
    int64_t generation;
    int64_t size;
    int16_t members[max_members];
  };
  struct alignas(128) Record {
    std::atomic<int64_t> number;  // 0 while it is being written
    std::atomic<uint64_t> packed;
    std::atomic<uint64_t> sequence;
    std::atomic<int64_t> count;
    std::atomic<int64_t> bytes;
    std::atomic<int64_t> posted;
    std::atomic<int64_t> started;
    std::atomic<int64_t> finished;
    std::atomic<int32_t> group;
    std::atomic<uint32_t> state;
    std::atomic<int32_t> dims;
    std::atomic<int64_t> shape[flight_dims];
  };

  uint64_t magic;
  int64_t capacity;
  int64_t rank;
  int64_t world_size;
  int64_t wall_minus_steady;  // nanoseconds since 1970 of the zero of the steady clock
  ProcessId process;
  char host[72];
  std::atomic<uint32_t> failed;  // the text below can be read
  char failure[4096];
  std::atomic<int64_t> recorded;
  std::atomic<int64_t> groups;
  Group group[max_groups];
  Record record[1];  // [capacity]
};

/// What is there now. A record that its process is writing may be torn: whoever reads beside it compares the number
/// before and after.
inline FlightRecord copy_of(const FlightRecorder::Memory::Record& from) {
  constexpr auto relaxed = std::memory_order_relaxed;
  FlightRecord record;
  record.number = from.number.load(relaxed);
  record.group = from.group.load(relaxed);
  record.state = static_cast<FlightState>(from.state.load(relaxed));
  record.packed = from.packed.load(relaxed);
  record.sequence = from.sequence.load(relaxed);
  record.count = from.count.load(relaxed);
  record.bytes = from.bytes.load(relaxed);
  record.posted = from.posted.load(relaxed);
  record.started = from.started.load(relaxed);
  record.finished = from.finished.load(relaxed);
  const auto dims = std::clamp<int64_t>(from.dims.load(relaxed), 0, flight_dims);
  for (int64_t d = 0; d < dims; ++d) record.shape.push_back(from.shape[d].load(relaxed));
  return record;
}

}  // namespace trireme::comm
