// What a step does, as told by what does it: scopes that say their name, the time that they took, and the work in them.
//
// A scope costs a branch while nothing is recorded. Its work is told by a function, which is called only while
// something is. Scopes of a thread nest, and each thread has events of its own. Operations only open scopes; whoever
// wants to know (train/profiler.h) starts and stops the recording, which is of the whole process, since an operation
// knows nothing of the run that it is part of. A recording changes no number.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::profile {

/// What a step is at. A forward scope inside a backward one is recomputation, and is recorded so.
enum class Phase : uint8_t { forward, backward, recompute, optimizer, communication, data, other };
std::string_view name_of(Phase phase);

enum class Kind : uint8_t {
  step,       ///< a whole training step
  section,    ///< a part of it
  operation,  ///< one of ours
  aten,       ///< an operator of ATen's
  node,       ///< the backward of an operation, as autograd calls it
};
std::string_view name_of(Kind kind);

/// m, n, k of a product [m, k] x [k, n]; rows and columns of a pass over memory; -1 where there is none.
using Shape = std::array<int64_t, 3>;

/// What an operation does, by its own formula.
struct Work {
  std::string_view of = {};  ///< whose it is: the name of a weight, e.g. blocks.3.attention.output.weight
  Shape shape{-1, -1, -1};
  double flops = 0;  ///< of matrix products alone, 2 a multiply-add
  double bytes = 0;  ///< read and written, each operand once
};

struct Event {
  Kind kind = Kind::operation;
  Phase phase = Phase::other;
  std::string name, of;
  Shape shape{-1, -1, -1};
  double flops = 0, bytes = 0;
  int64_t begin_ns = 0, end_ns = 0;  ///< of the monotonic clock, which all processes of a machine share
};

struct Thread {
  int64_t id = 0;  ///< the operating system's
  std::string name;
  std::vector<Event> events;  ///< in the order in which they ended
};

/// Drops what was recorded before and records from now on. From any thread; so are all functions here.
void start();
/// Ends the recording and hands out what each thread has; a scope that is still open is not in it.
std::vector<Thread> stop();

/// Of the calling thread, in recordings; "thread" without.
void name_this_thread(std::string name);

namespace detail {
extern std::atomic<uint64_t> recording;  // the number of the recording; 0: none

/// Phase of the scope that is open around this one.
Phase current_phase();
/// For what cannot be a Scope: begin() returns what end() wants.
uint64_t begin(Kind kind, Phase phase, std::string_view name, const Work& work);
void end(uint64_t recording) noexcept;
}  // namespace detail

inline bool recording() { return detail::recording.load(std::memory_order_relaxed) != 0; }

class Scope {
 public:
  /// An operation. `work()` returns its Work.
  template <typename Describe>
  Scope(Phase phase, std::string_view name, Describe&& work) {
    if (recording()) [[unlikely]]
      recording_ = detail::begin(Kind::operation, phase, name, std::forward<Describe>(work)());
  }
  /// What has no work of its own.
  Scope(Kind kind, Phase phase, std::string_view name, int64_t number = -1) {
    if (recording()) [[unlikely]]
      recording_ = detail::begin(kind, phase, name, {.shape = {number, -1, -1}});
  }
  ~Scope() {
    if (recording_ != 0) [[unlikely]]
      detail::end(recording_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  uint64_t recording_ = 0;
};

}  // namespace trireme::profile
