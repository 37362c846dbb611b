// Status page: one page of shared memory through which local workers tell their launcher where they are.
//
// A worker that is killed cannot say what it was doing, so it says so all the time: its slot holds the last finished
// step, the phase, and the text of its own error, written with plain stores (no system call, so it may be done every
// step). The memory is a memfd that workers inherit over exec (environment variable TRIREME_STATUS_FD); it has no name
// and vanishes with its last user, so nothing is left after a kill.
//
// Contract: the launcher calls create(); a worker calls from_environment() once and writes its own slot only (slot =
// LOCAL_RANK). All members may be called from any thread. Slots may be read by anyone at any time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trireme::resilience {

/// What a worker is doing, for the report about its death.
enum class Phase : uint32_t { starting, loading, training, evaluating, saving, done };
/// In the words of a report: "while training".
std::string_view to_string(Phase phase);

/// A copy of one slot.
struct WorkerStatus {
  int pid = 0;             ///< 0 until the worker has opened the page
  int64_t last_step = -1;  ///< last finished step; -1 before the first
  Phase phase = Phase::starting;
  /// Since the worker last wrote anything into its slot; zero when it never has.
  std::chrono::nanoseconds silent_for{0};
  std::string memory;  ///< what its tensors held after that step, in words; empty when it has not told
  bool has_error = false;
  ExitCode error_code = ExitCode::internal;
  std::string error;  ///< first error that the worker reported, cut at 8 KiB
  /// When it was reported, on the monotonic clock: orders the failures of several workers.
  std::chrono::nanoseconds error_time{0};
};

class StatusPage {
 public:
  static constexpr const char* kEnvironmentVariable = "TRIREME_STATUS_FD";

  /// Launcher: a fresh page for `local_workers` workers. Throws InternalError when the system gives no memory.
  static StatusPage create(int local_workers);
  /// Worker: the page of the launcher that started it, with the slot LOCAL_RANK; nullopt when another launcher
  /// (torchrun, srun, mpirun) did. Throws InternalError when the variable is set but does not lead to a page.
  static std::optional<StatusPage> from_environment();

  /// Another handle on the same page and slot.
  StatusPage duplicate() const;

  StatusPage(StatusPage&&) noexcept;
  StatusPage& operator=(StatusPage&&) noexcept;
  ~StatusPage();

  // -- worker side: writes the worker's own slot --------------------------------------------------------------------
  /// The last finished step.
  void set_step(int64_t step);
  void set_phase(Phase phase);
  /// What this worker's tensors hold, in words: whoever is killed for want of memory can no longer tell.
  void set_memory(std::string_view text);
  /// "I am alive" without news; set_step and set_phase imply it.
  void heartbeat();
  /// Keeps the first error; false when there was one already (that one is nearer to the cause).
  bool report_error(ExitCode code, std::string_view message);

  // -- where the c10d store of this job listens ---------------------------------------------------------------------
  /// Rank 0, which hosts the store on a free port, tells the other local workers.
  void publish_port(uint16_t port);
  /// Waits until rank 0 has published the port. Throws WorkerError when local worker 0 reported an error or `timeout`
  /// passed.
  uint16_t await_port(std::chrono::milliseconds timeout) const;

  // -- launcher side ------------------------------------------------------------------------------------------------
  WorkerStatus read(int local_rank) const;
  /// True when the worker has reported an error (cheap: no copy).
  bool has_error(int local_rank) const;
  /// The descriptor that workers inherit; close-on-exec here, so the launcher clears that flag in the child.
  int fd() const;

 private:
  struct Mapping;
  explicit StatusPage(std::unique_ptr<Mapping> mapping);
  std::unique_ptr<Mapping> mapping_;
};

}  // namespace trireme::resilience
