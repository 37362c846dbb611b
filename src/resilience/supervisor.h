// The supervisor: starts the workers of this machine, watches them, names the one that failed, and ends the others.
//
// One thread, one poll loop, no torch. It learns of a worker's fate from the kernel (death, stop) and from the status
// page (an error that the worker reported, its last finished step). The first failure in time is the cause, but a
// worker that says "my peer failed" (exit code 3) is never blamed while another has a fault of its own: deaths are
// noticed by peers in microseconds, and a core dump takes seconds, so the order in which processes end says little.
//
// No process outlives supervise(), whatever happens: it ends and reaps them before it returns or throws, and the kernel
// kills them when this process dies.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"

namespace trireme::resilience {

struct SupervisorOptions {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  ///< of each worker, the same for all: the environment tells them apart
  std::filesystem::path run_dir;       ///< logs go to run_dir/logs/rank-00000.log; must be writable
  bool has_checkpoints = true;         ///< what the workers do can be resumed: said after a failure
  int local_workers = 1;
  int first_rank = 0;  ///< rank of the first local worker
  int world_size = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  ///< 0: rank 0 takes a free port and publishes it on the status page

  std::chrono::milliseconds stop_patience{2000};    ///< a worker that is stopped (SIGSTOP) may be continued so long
  std::chrono::milliseconds cause_patience{1000};   ///< after a "my peer failed", wait so long for the peer's own end
  std::chrono::milliseconds settle{150};            ///< after a cause, for others that fell at the same moment
  std::chrono::milliseconds linger_patience{2000};  ///< between a reported error and the end of the process
  std::chrono::milliseconds end_patience{1500};     ///< between SIGTERM and SIGKILL for the others
};

struct SupervisorResult {
  /// done; stopped (after saving); worker_failed; bad_input and does_not_fit when that is why the workers ended.
  ExitCode code = ExitCode::done;
  std::string message;  ///< for the user, several lines; empty for done and stopped
};

/// Runs the workers to their end. Call it on the main thread, from a process that has started no threads that take
/// signals: while it runs, SIGINT, SIGTERM, SIGUSR1 and SIGHUP are passed on to the workers (SIGHUP means that
/// the terminal is gone), and a second SIGINT kills them. SIGUSR2 writes down what the workers did last
/// (RUN/flight/dump-TIME.json), as a failure does. Rank 0's output is shown on stdout. Throws
/// InputError when the log folder cannot be written, InternalError when a process cannot be started.
SupervisorResult supervise(const SupervisorOptions& options);

/// RUN/logs/rank-00003.log
std::filesystem::path log_path(const std::filesystem::path& run_dir, int rank);

}  // namespace trireme::resilience
