// A caching CPU allocator installed under ATen, so that a training step after warm-up asks the system for nothing.
//
// Why: an eager step allocates and frees hundreds of megabytes of activations; glibc hands large blocks back to the
// system each time, and the page faults of getting them again cost more than the element-wise work. Here a freed block
// goes to the free list of its size class and is handed out again. Blocks of 2 MiB and more are aligned to and advised
// for huge pages.
//
// Size classes: four steps for each power of two (waste at most 25 %, 12 % on average; none for a power of two). Blocks
// below 1 MiB, which have 64 bytes more, are carved from 2 MiB chunks of one class. Memory returns to the system only
// through release_cached().
//
// Thread safety: every function may be called from any thread; a block may be freed by another thread than the one that
// got it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::memory {

struct AllocatorStatistics {
  int64_t live_bytes = 0;       ///< handed out now, rounded to size classes
  int64_t peak_live_bytes = 0;  ///< highest live_bytes since the start or reset_peak()
  int64_t system_bytes = 0;     ///< taken from the system: live and cached
  int64_t system_calls = 0;     ///< how often the system was asked for memory
  int64_t allocations = 0;      ///< how often a block was handed out
};

/// Makes every CPU tensor that is allocated from now on come from the cache. Call once, before the first tensor.
///
/// What libraries below ATen take from malloc (oneDNN's and flash attention's scratch) is not seen here; the program is
/// linked with jemalloc, which is told to keep what they free, for the same reason.
void install_caching_allocator();
bool caching_allocator_installed();

AllocatorStatistics allocator_statistics();
void reset_peak();
/// Gives free blocks of 1 MiB and more back to the system; returns how many bytes.
int64_t release_cached();

}  // namespace trireme::memory
