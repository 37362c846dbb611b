// Private to comm: the log of allocations, in shared memory; all bytes zero is empty.
#pragma once

#include <atomic>
#include <cstdint>

namespace trireme::comm {

struct AllocationLog {
  static constexpr int64_t capacity = 4096;
  struct Entry {
    std::atomic<uint32_t> state;  // 0 free, 1 being written, 2 ready
    int32_t first_rank;
    int64_t bytes;
    uint64_t offset;  // ~0: the arena was full
    char name[104];
  };
  Entry entries[capacity];
};

}  // namespace trireme::comm
