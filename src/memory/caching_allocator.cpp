#include "memory/caching_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "base/error.h"
#include "memory/size_class.h"

namespace trireme::memory {
namespace {

constexpr size_t kHeader = 64;  // keeps the user's pointer aligned for AVX-512
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLargeBlock = size_t{1} << 20;
constexpr size_t kLargestBlock = size_t{1} << 50;
static_assert(class_of(kLargestBlock + kHeader) < kClasses);
constexpr uint64_t kMagic = 0x7472697265'6d6531;

// In front of each block; the user's pointer is right behind it.
struct Header {
  uint64_t magic;
  int size_class;
  Header* next;  // in the free list
};
static_assert(sizeof(Header) <= kHeader);

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
  }

  int64_t release() {
    const std::lock_guard lock(mutex_);
    int64_t released = 0;
    for (int index = class_of(kLargeBlock); index < kClasses; ++index) {
      while (Header* block = free_[index]) {
        free_[index] = block->next;
        const size_t mapped = mapped_size(index);
        ::munmap(block, mapped);
        released += static_cast<int64_t>(mapped);
      }
    }
    statistics_.system_bytes -= released;
    return released;
  }

  static Cache& instance() {
    static Cache* cache = new Cache;  // never destroyed: tensors of static duration may be freed after main
    return *cache;
  }

 private:
  static size_t mapped_size(int index) {
    const size_t bytes = size_of_class(index);
    return round_up(bytes, bytes >= kHugePage ? kHugePage : size_t{4096});
  }

  void* take(size_t bytes) {
    // Beyond every machine, and beyond the last class.
    if (bytes > kLargestBlock) throw_internal("out of memory: {} bytes were asked for", bytes);
    const int index = class_of(bytes + kHeader);
    const std::lock_guard lock(mutex_);
    if (free_[index] == nullptr) refill(index);
    Header* block = free_[index];
    free_[index] = block->next;
    block->next = nullptr;
    ++statistics_.allocations;
    statistics_.live_bytes += static_cast<int64_t>(size_of_class(index));
    statistics_.peak_live_bytes = std::max(statistics_.peak_live_bytes, statistics_.live_bytes);
    return reinterpret_cast<char*>(block) + kHeader;
  }

  // Called with the lock held.
  void refill(int index) {
    const size_t block_bytes = size_of_class(index);
    const bool large = block_bytes >= kLargeBlock;
    const size_t bytes = large ? mapped_size(index) : kHugePage;
    char* memory = static_cast<char*>(map(bytes));
    const size_t count = large ? 1 : bytes / block_bytes;
    for (size_t i = count; i-- > 0;) {
      Header* block = reinterpret_cast<Header*>(memory + i * block_bytes);
      *block = {kMagic, index, free_[index]};
      free_[index] = block;
    }
  }

  void* map(size_t bytes) {
    const bool huge = bytes >= kHugePage;
    const size_t reserve = huge ? bytes + kHugePage : bytes;  // room to align
    void* memory = ::mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw_internal("out of memory: {} MiB were asked for; tensors hold {} MiB now, {} MiB at the peak", bytes >> 20,
                     statistics_.live_bytes >> 20, statistics_.peak_live_bytes >> 20);
    char* start = static_cast<char*>(memory);
    if (huge) {
      char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(start), kHugePage));
      if (aligned != start) ::munmap(start, static_cast<size_t>(aligned - start));
      const size_t tail = static_cast<size_t>(start + reserve - (aligned + bytes));
      if (tail != 0) ::munmap(aligned + bytes, tail);
      start = aligned;
      ::madvise(start, bytes, MADV_HUGEPAGE);
    }
    ++statistics_.system_calls;
    statistics_.system_bytes += static_cast<int64_t>(bytes);
    return start;
  }

  static void give_back(void* data) {
    if (data == nullptr) return;
    Header* block = reinterpret_cast<Header*>(static_cast<char*>(data) - kHeader);
    // Runs in destructors: a damaged header means that memory was overwritten, and going on would spread it.
    if (block->magic != kMagic || block->next != nullptr) {
      std::fputs(
          "trireme: error: a freed tensor block is damaged: something wrote before its start, or freed it twice\n",
          stderr);
      std::abort();
    }
    Cache& cache = instance();
    const std::lock_guard lock(cache.mutex_);
    const int index = block->size_class;
    block->next = cache.free_[index];
    cache.free_[index] = block;
    cache.statistics_.live_bytes -= static_cast<int64_t>(size_of_class(index));
  }

  std::mutex mutex_;
  std::array<Header*, kClasses> free_{};
  AllocatorStatistics statistics_;
};

bool installed = false;

}  // namespace

void install_caching_allocator() {
  if (installed) return;
  installed = true;
  c10::SetCPUAllocator(&Cache::instance(), /*priority=*/100);
  // Without these glibc maps blocks over 128 KiB anew each time and trims the heap's top after every free.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_TOP_PAD, 16 << 20);
}

bool caching_allocator_installed() { return installed; }
AllocatorStatistics allocator_statistics() { return Cache::instance().statistics(); }
void reset_peak() { Cache::instance().reset_peak(); }
int64_t release_cached() { return Cache::instance().release(); }

}  // namespace trireme::memory
