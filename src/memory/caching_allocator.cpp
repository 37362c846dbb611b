#include "memory/caching_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <mutex>

#include "base/machine.h"
#include "memory/extents.h"
#include "memory/process_memory.h"
#include "memory/size_class.h"

// Read by jemalloc when it is loaded; MALLOC_CONF in the environment goes before it. It keeps what is freed
// (dirty_decay_ms), and treats blocks of 8 MiB and more as it does others (oversize_threshold): both would otherwise go
// back to the system, and cost page faults in each step.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "dirty_decay_ms:-1,oversize_threshold:0";
// Of jemalloc, which sanitizer builds do without.
[[gnu::weak]] int mallctl(const char* name, void* old_value, size_t* old_size, void* new_value, size_t new_size);
}

namespace trireme::memory {
namespace {

constexpr size_t kHeader = 64;  // keeps the user's pointer aligned for AVX-512
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLargestBlock = size_t{1} << 50;
constexpr size_t kLargeBlock = size_t{64} << 10;  // from here on blocks are parts of the heap, without size classes
constexpr size_t kChunk = size_t{256} << 10;      // that smaller blocks are carved from
constexpr int kSmallClasses = class_of(kLargeBlock) + 1, kLarge = -1;
constexpr size_t kSegment = size_t{64} << 20;
constexpr uint64_t kMagic = 0x7472697265'6d6531;

// In front of each block; the user's pointer is right behind it.
struct Header {
  uint64_t magic;
  int size_class;  // kLarge: none
  Purpose purpose;
  Tier tier;
  int64_t bytes;  // asked for
  Header* next;   // in the free list of its class
};
static_assert(sizeof(Header) <= kHeader);

std::string words(const AllocatorStatistics& statistics) {
  const int64_t beside = std::max<int64_t>(0, statistics.system_bytes - total(statistics.live));
  return fmt::format("tensors hold {}; rounded up and kept for reuse {}", to_text(statistics.live),
                     in_mebibytes(beside));
}

size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

class Cache final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : take(bytes);
    return {data, data, &Cache::give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Cache::give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  AllocatorStatistics statistics() {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    statistics_.peak_live_bytes = statistics_.live_bytes;
    statistics_.at_peak = statistics_.live;
    statistics_.host_at_peak = statistics_.host;
    statistics_.peak_device_bytes = device_bytes_;
  }
  void hold_elsewhere(Purpose purpose, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    count(purpose, Tier::device, bytes, bytes);
  }

  int64_t release() {
    const std::lock_guard lock(mutex_);
    return release_locked();
  }

  static Cache& instance() {
    static Cache* cache = new Cache;  // never destroyed: tensors of static duration may be freed after main
    return *cache;
  }

 private:
  Cache() {
    // One range of addresses for all, so that free neighbours always grow together. Where addresses count, it would
    // take all that there may be, and the heap grows in segments.
    if (!addresses_count()) add_segment(static_cast<size_t>(memory_), MAP_NORESERVE);
  }

  /// Whether the system counts memory when it is mapped, not when it is touched.
  static bool addresses_count() {
    for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
      rlimit limit{};
      if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return true;
    }
    int overcommit = 0;
    return std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit && overcommit == 2;
  }

  /// Memory that a block of the heap takes, with its header.
  static size_t heap_size(size_t bytes) { return round_up(bytes + kHeader, kPage); }
  /// Memory that a block takes, whichever it is.
  static int64_t size_of(const Header& block) {
    return static_cast<int64_t>(block.size_class == kLarge ? heap_size(static_cast<size_t>(block.bytes))
                                                           : size_of_class(block.size_class));
  }

  int64_t release_locked() {
    int64_t released = 0;
    heap_.release([&](char* at, size_t bytes) {
      if (::madvise(at, bytes, MADV_DONTNEED) == 0) released += static_cast<int64_t>(bytes);
    });
    statistics_.system_bytes -= released;
    return released;
  }

  void* take(size_t bytes) {
    // Beyond every machine.
    if (bytes > kLargestBlock) throw OutOfMemory(fmt::format("out of memory: {} bytes were asked for", bytes));
    const std::lock_guard lock(mutex_);
    Header* block = bytes + kHeader < kLargeBlock ? take_small(class_of(bytes + kHeader)) : take_large(bytes);
    block->purpose = current_purpose();
    block->tier = current_tier();
    block->bytes = static_cast<int64_t>(bytes);
    ++statistics_.allocations;
    count(block->purpose, block->tier, block->bytes, size_of(*block));
    return reinterpret_cast<char*>(block) + kHeader;
  }

  // Called with the lock held, as are those below. `rounded`: what the memory of `bytes` takes.
  void count(Purpose purpose, Tier tier, int64_t bytes, int64_t rounded) {
    of(statistics_.live, purpose) += bytes;
    if (tier == Tier::host) {
      of(statistics_.host, purpose) += bytes;
    } else {
      device_bytes_ += bytes;
      statistics_.peak_device_bytes = std::max(statistics_.peak_device_bytes, device_bytes_);
    }
    statistics_.live_bytes += rounded;
    if (statistics_.live_bytes <= statistics_.peak_live_bytes) return;
    statistics_.peak_live_bytes = statistics_.live_bytes;
    statistics_.at_peak = statistics_.live;
    statistics_.host_at_peak = statistics_.host;
  }

  Header* take_large(size_t bytes) {
    auto* block = reinterpret_cast<Header*>(take_from_heap(heap_size(bytes)));
    *block = {kMagic, kLarge, Purpose::other, Tier::device, 0, nullptr};
    return block;
  }

  Header* take_small(int index) {
    if (free_[index] == nullptr) {
      const size_t block_bytes = size_of_class(index);
      char* memory = take_from_heap(kChunk);
      for (size_t i = kChunk / block_bytes; i-- > 0;) {
        auto* block = reinterpret_cast<Header*>(memory + i * block_bytes);
        *block = {0, index, Purpose::other, Tier::device, 0, free_[index]};
        free_[index] = block;
      }
    }
    Header* block = free_[index];
    free_[index] = block->next;
    *block = {kMagic, index, Purpose::other, Tier::device, 0, nullptr};
    return block;
  }

  char* take_from_heap(size_t bytes) {
    auto taken = heap_.take(bytes);
    // What is free in parts with and without memory behind them may fit together, and where addresses count, what is
    // kept for reuse may be what is missing.
    if (!taken && release_locked() > 0) taken = heap_.take(bytes);
    if (!taken && add_segment(std::max(bytes, kSegment), 0)) taken = heap_.take(bytes);
    if (!taken && add_segment(bytes, 0)) taken = heap_.take(bytes);
    if (!taken)
      throw OutOfMemory(fmt::format("out of memory: {} more were asked for {}; {}",
                                    in_mebibytes(static_cast<int64_t>(bytes)), name_of(current_purpose()),
                                    words(statistics_)));
    if (taken->bare > 0) {
      ++statistics_.system_calls;
      statistics_.system_bytes += static_cast<int64_t>(taken->bare);
      // Before the system kills for want of memory that is only kept for reuse.
      if (statistics_.system_bytes > memory_) release_locked();
    }
    return taken->at;
  }

  /// Addresses for `bytes` more; false when there are none.
  bool add_segment(size_t bytes, int flags) {
    bytes = round_up(bytes, kHugePage);
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (memory == MAP_FAILED) return false;
    ::madvise(memory, bytes, MADV_HUGEPAGE);
    heap_.add(static_cast<char*>(memory), bytes);
    return true;
  }

  static void give_back(void* data) {
    if (data == nullptr) return;
    Header* block = reinterpret_cast<Header*>(static_cast<char*>(data) - kHeader);
    Cache& cache = instance();
    const std::lock_guard lock(cache.mutex_);
    // Runs in destructors: a damaged header means that memory was overwritten, and going on would spread it.
    if (block->magic != kMagic) {
      std::fputs(
          "trireme: error: a freed tensor block is damaged: something wrote before its start, or freed it twice\n",
          stderr);
      std::abort();
    }
    block->magic = 0;  // freed twice, it is found out until it is handed out again
    cache.count(block->purpose, block->tier, -block->bytes, -size_of(*block));
    if (block->size_class == kLarge) {
      cache.heap_.give(reinterpret_cast<char*>(block), heap_size(static_cast<size_t>(block->bytes)));
    } else {
      block->next = cache.free_[block->size_class];
      cache.free_[block->size_class] = block;
    }
  }

  const int64_t memory_ = usable_memory_bytes();
  std::mutex mutex_;
  std::array<Header*, kSmallClasses> free_{};
  Extents heap_;
  AllocatorStatistics statistics_;
  int64_t device_bytes_ = 0;  // what is of Tier::device now
};

bool installed = false;

}  // namespace

void install_caching_allocator() {
  if (installed) return;
  installed = true;
  c10::SetCPUAllocator(&Cache::instance(), /*priority=*/100);
}

bool caching_allocator_installed() { return installed; }
AllocatorStatistics allocator_statistics() { return Cache::instance().statistics(); }
void reset_peak() { Cache::instance().reset_peak(); }
int64_t release_cached() {
  release_malloc();
  return Cache::instance().release();
}

void release_malloc() {
  // MALLCTL_ARENAS_ALL, from jemalloc's header.
  if (mallctl != nullptr) mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0);
}

BesideBlocks beside_blocks() {
  if (!installed) return {};
  const ResidentBytes resident = resident_bytes();
  return {std::max<int64_t>(0, resident.anonymous - Cache::instance().statistics().system_bytes), resident.mapped};
}

std::string held_in_words() { return words(Cache::instance().statistics()); }

HeldElsewhere::HeldElsewhere(Purpose purpose, int64_t bytes) : purpose_(purpose), bytes_(bytes) {
  Cache::instance().hold_elsewhere(purpose, bytes);
}
HeldElsewhere::~HeldElsewhere() {
  if (bytes_ != 0) Cache::instance().hold_elsewhere(purpose_, -bytes_);
}

}  // namespace trireme::memory
