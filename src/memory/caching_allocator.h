// A caching CPU allocator installed under ATen, so that a training step after warm-up asks the system for nothing.
//
// Why: an eager step allocates and frees hundreds of megabytes of activations; glibc hands large blocks back to the
// system each time, and the page faults of getting them again cost more than the element-wise work.
//
// Blocks of 64 KiB and more are parts of one heap, which is advised for huge pages: the tightest free part serves a
// request, and what is freed joins its free neighbours (memory/extents.h). So hardly anything is rounded (64 bytes, and
// up to whole pages), and what one size leaves free serves another. Smaller blocks are carved from chunks of 256 KiB of
// one size class: 256 bytes, then four steps for each power of two (waste at most 25 % from there). Memory returns to
// the system only through release_cached().
//
// Thread safety: every function may be called from any thread; a block may be freed by another thread than the one that
// got it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "memory/purpose.h"

namespace trireme::memory {

struct AllocatorStatistics {
  int64_t live_bytes = 0;         ///< handed out now, rounded, and what is held elsewhere
  int64_t peak_live_bytes = 0;    ///< highest live_bytes since the start or reset_peak()
  int64_t system_bytes = 0;       ///< taken from the system: live and cached
  int64_t system_calls = 0;       ///< how often the system was asked for memory
  int64_t allocations = 0;        ///< how often a block was handed out
  PurposeBytes live{};            ///< live_bytes by purpose, as asked for: not rounded
  PurposeBytes at_peak{};         ///< `live` at the moment of peak_live_bytes
  PurposeBytes host{};            ///< what of `live` is of Tier::host
  PurposeBytes host_at_peak{};    ///< likewise of `at_peak`
  int64_t peak_device_bytes = 0;  ///< highest sum of what is of Tier::device, as asked for
};

/// The machine, or a limit of this process (ulimit -v), has no more memory. The message says how much was asked for and
/// for what, and what tensors held at that moment.
class OutOfMemory : public InternalError {
 public:
  using InternalError::InternalError;
};

/// Makes every CPU tensor that is allocated from now on come from the cache. Call once, before the first tensor.
///
/// What libraries below ATen take from malloc (oneDNN's and flash attention's scratch) is not seen here; the program is
/// linked with jemalloc, which is told to keep what they free, for the same reason.
void install_caching_allocator();
bool caching_allocator_installed();

AllocatorStatistics allocator_statistics();
/// The peak is what is live now.
void reset_peak();
/// Gives free blocks of 64 KiB and more back to the system, and what malloc holds free; returns how many bytes of
/// blocks.
int64_t release_cached();
/// Gives what malloc holds free back to the system: libraries build tables when they are loaded and free them again.
void release_malloc();
/// What this process has in memory now beside tensors. Zeros when the allocator is not installed, and nobody counts.
struct BesideBlocks {
  int64_t libraries = 0;  ///< what they keep: tables, scratch, code that was made
  int64_t mapped = 0;     ///< files: code and data, which processes share
  int64_t bytes() const { return libraries + mapped; }
};
BesideBlocks beside_blocks();
/// What tensors hold now, by purpose, and what is kept for reuse: "tensors hold 712.0 MiB: moments 228.4 MiB, ...".
std::string held_in_words();

/// Counts memory of tensors that does not come from the cache (shared memory of local ranks) for as long as it lives.
class HeldElsewhere {
 public:
  HeldElsewhere() = default;
  HeldElsewhere(Purpose purpose, int64_t bytes);
  ~HeldElsewhere();
  HeldElsewhere(HeldElsewhere&& other) noexcept : purpose_(other.purpose_), bytes_(std::exchange(other.bytes_, 0)) {}
  HeldElsewhere& operator=(HeldElsewhere&& other) noexcept {
    std::swap(purpose_, other.purpose_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

 private:
  Purpose purpose_ = Purpose::other;
  int64_t bytes_ = 0;
};

}  // namespace trireme::memory
