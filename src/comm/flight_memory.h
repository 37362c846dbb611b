// Private to comm: how a flight recorder lies in its file. All bytes zero is the state before the first record.
#pragma once

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

}  // namespace trireme::comm
