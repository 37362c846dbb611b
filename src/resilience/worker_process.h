// Starting one worker: fork and exec of a program whose life is tied to this process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/file.h"

namespace trireme::resilience {

struct WorkerCommand {
  std::string program;                   ///< path of the executable
  std::vector<std::string> arguments;    ///< without the program's name
  std::vector<std::string> environment;  ///< "NAME=value", all of it
  std::vector<int> inherited;            ///< descriptors that stay open over exec, besides 0, 1, 2
  int output = -1;                       ///< becomes stdout and stderr; stdin is /dev/null
  std::vector<int> cpus;                 ///< CPUs to pin to; empty: as this process
};

/// Starts the worker and returns its process id. SIGTERM, SIGINT and SIGUSR1 are blocked in it until it takes them (see
/// install_stop_handlers); other signals are as by default.
///
/// The kernel kills the worker (SIGKILL) when the *thread* that called this ends, so call it from the thread that
/// supervises. Only async-signal-safe calls are made between fork and exec, so other threads do no harm.
/// Throws InternalError with the failed call.
pid_t start_worker(const WorkerCommand& command);

/// The environment of this process without the variables that `replaced` names ("NAME=value") and without those whose
/// names begin with one of `dropped_prefixes`, then `replaced`.
std::vector<std::string> environment_with(const std::vector<std::string>& replaced,
                                          const std::vector<std::string>& dropped_prefixes = {});

}  // namespace trireme::resilience
