#include "memory/caching_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

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
constexpr int kFirstLargeClass = class_of(size_t{1} << 20);
static_assert(class_of(kLargestBlock) < kClasses);
constexpr uint64_t kMagic = 0x7472697265'6d6531;

// In front of each block; the user's pointer is right behind it. A small block's class counts it. A large block's does
// not, since most tensors are as large as a power of two, and would all go one class up: its header ends a page of its
// own in front of the aligned memory.
struct Header {
  uint64_t magic;
  int size_class;
  Purpose purpose;
  int64_t bytes;  // asked for
  Header* next;   // in the free list
};
static_assert(sizeof(Header) <= kHeader);

std::string words(const AllocatorStatistics& statistics) {
  const int64_t beside = std::max<int64_t>(0, statistics.system_bytes - total(statistics.live));
  return fmt::format("tensors hold {}; rounded up to sizes of blocks and kept for reuse {}", to_text(statistics.live),
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
  }
  void hold_elsewhere(Purpose purpose, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    count(purpose, bytes, bytes);
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
  /// Of a large block, with the page of its header.
  static size_t mapped_size(int index) { return kPage + round_up(size_of_class(index), kPage); }

  int64_t release_locked() {
    int64_t released = 0;
    for (int index = kFirstLargeClass; index < kClasses; ++index) {
      while (Header* block = free_[index]) {
        free_[index] = block->next;
        ::munmap(reinterpret_cast<char*>(block) + kHeader - kPage, mapped_size(index));
        released += static_cast<int64_t>(mapped_size(index));
      }
    }
    statistics_.system_bytes -= released;
    return released;
  }

  void* take(size_t bytes) {
    // Beyond every machine, and beyond the last class.
    if (bytes > kLargestBlock) throw OutOfMemory(fmt::format("out of memory: {} bytes were asked for", bytes));
    int index = class_of(bytes + kHeader);
    if (index >= kFirstLargeClass) index = std::max(kFirstLargeClass, class_of(bytes));
    const std::lock_guard lock(mutex_);
    if (free_[index] == nullptr) refill(index);
    Header* block = free_[index];
    free_[index] = block->next;
    block->next = nullptr;
    block->purpose = current_purpose();
    block->bytes = static_cast<int64_t>(bytes);
    ++statistics_.allocations;
    count(block->purpose, block->bytes, static_cast<int64_t>(size_of_class(index)));
    return reinterpret_cast<char*>(block) + kHeader;
  }

  // Called with the lock held, as are those below. `rounded`: what the memory of `bytes` takes.
  void count(Purpose purpose, int64_t bytes, int64_t rounded) {
    of(statistics_.live, purpose) += bytes;
    statistics_.live_bytes += rounded;
    if (statistics_.live_bytes <= statistics_.peak_live_bytes) return;
    statistics_.peak_live_bytes = statistics_.live_bytes;
    statistics_.at_peak = statistics_.live;
  }

  void refill(int index) {
    const size_t block_bytes = size_of_class(index);
    if (index >= kFirstLargeClass) {
      add_free(map(block_bytes, kPage) - kHeader, index);
      return;
    }
    char* memory = map(kHugePage, 0);
    for (size_t i = kHugePage / block_bytes; i-- > 0;) add_free(memory + i * block_bytes, index);
  }

  void add_free(char* at, int index) {
    auto* block = reinterpret_cast<Header*>(at);
    *block = {kMagic, index, Purpose::other, 0, free_[index]};
    free_[index] = block;
  }

  /// `bytes` of memory, with `before` more in front; from 2 MiB on, aligned to huge pages.
  char* map(size_t bytes, size_t before) {
    bytes = round_up(bytes, kPage);
    const size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
    const size_t reserve = before + bytes + alignment - kPage;  // room to align
    const auto ask = [&] {
      return ::mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    };
    void* memory = ask();
    // What is cached in blocks of other sizes may be what is missing.
    if (memory == MAP_FAILED && release_locked() > 0) memory = ask();
    if (memory == MAP_FAILED)
      throw OutOfMemory(fmt::format("out of memory: {} more were asked for {}; {}",
                                    in_mebibytes(static_cast<int64_t>(bytes)), name_of(current_purpose()),
                                    words(statistics_)));
    char* begin = static_cast<char*>(memory);
    char* start = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(begin) + before, alignment));
    if (start - before != begin) ::munmap(begin, static_cast<size_t>(start - before - begin));
    const size_t tail = static_cast<size_t>(begin + reserve - (start + bytes));
    if (tail != 0) ::munmap(start + bytes, tail);
    if (alignment == kHugePage) ::madvise(start, bytes, MADV_HUGEPAGE);
    ++statistics_.system_calls;
    statistics_.system_bytes += static_cast<int64_t>(before + bytes);
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
    cache.count(block->purpose, -block->bytes, -static_cast<int64_t>(size_of_class(index)));
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

std::string held_in_words() { return words(Cache::instance().statistics()); }

HeldElsewhere::HeldElsewhere(Purpose purpose, int64_t bytes) : purpose_(purpose), bytes_(bytes) {
  Cache::instance().hold_elsewhere(purpose, bytes);
}
HeldElsewhere::~HeldElsewhere() {
  if (bytes_ != 0) Cache::instance().hold_elsewhere(purpose_, -bytes_);
}

}  // namespace trireme::memory
