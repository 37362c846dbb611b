// What a worker knows about its place in the run, and the ways in which it may be asked to stop.
//
// A stop is a request: the worker finishes its step, saves, and ends with exit code 5. It can come as a signal
// (SIGTERM, SIGINT, SIGUSR1 as batch systems send before the time is over, SIGHUP of a lost terminal) or as a file
// RUN/stop, which needs no process id and works from another machine. Whether to stop is a collective decision: each
// rank asks stop_reason(), and the trainer agrees on it.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"
#include "comm/launch_environment.h"
#include "resilience/status_page.h"

namespace trireme::resilience {

enum class StopReason : int { none = 0, terminate, interrupt, user_signal, hangup, stop_file };
/// In words: "SIGTERM", "the file runs/x/stop".
std::string to_string(StopReason reason, const std::filesystem::path& run_dir);

struct WorkerContext {
  comm::LaunchEnvironment environment;
  std::optional<StatusPage> status;  ///< none under torchrun, srun and mpirun
  FileDescriptor progress;           ///< a terminal for the progress bar (rank 0 of our own launcher), or none
  int threads = 1;                   ///< threads to compute with: give it to at::set_num_threads
  std::string thread_note;           ///< why that differs from OMP_NUM_THREADS; to be logged when not empty
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
};

/// Once, at the start of a worker, on the main thread before others exist: opens the status page and the progress
/// terminal, takes stop signals (see install_stop_handlers), makes stdout line-buffered (it is a file or a pipe, and
/// the last lines before a crash matter), and lets an exception that nobody caught leave its text on the status page.
WorkerContext make_worker_context(comm::LaunchEnvironment environment);

/// From now on SIGTERM, SIGINT, SIGUSR1 and SIGHUP (unless nohup has it ignored) only set the flag that stop_reason
/// reads. The launcher starts workers with these signals blocked, so that one that comes before this call is not lost
/// and does not kill; the call unblocks them. SIGUSR2 asks for a dump of the flight recorder (comm/flight_log.h).
void install_stop_handlers();

/// The first reason to stop, or none. Costs one stat(2); call it once a step.
StopReason stop_reason(const std::filesystem::path& run_dir);
/// Of signals alone.
StopReason stop_signal();

/// RUN/stop.
std::filesystem::path stop_file(const std::filesystem::path& run_dir);
/// After the run has obeyed (or when it starts): a stop file that stays would stop the resumed run at once. Whether
/// there was one.
bool remove_stop_file(const std::filesystem::path& run_dir);

/// Threads a worker should compute with, from OMP_NUM_THREADS and the CPUs of this machine. torchrun sets
/// OMP_NUM_THREADS=1 for every worker by itself: that is overridden, with a note.
struct ThreadChoice {
  int threads = 1;
  std::string note;
};
ThreadChoice choose_threads(const comm::LaunchEnvironment& environment, const comm::Getenv& getenv, int allowed,
                            double quota);

}  // namespace trireme::resilience
