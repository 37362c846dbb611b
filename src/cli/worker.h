// A process that is one of several workers: how its errors reach whoever started it.
#pragma once

#include <functional>

#include "base/error.h"
#include "comm/launch_environment.h"
#include "resilience/worker_context.h"

namespace trireme::cli {

/// Calls `work` with a new context. Our launcher shows the error of the worker that failed first, and writes it into
/// the worker's log: the worker itself only leaves it on the status page and ends with its code (CLI::RuntimeError).
/// Under another launcher the error goes on, and main() prints it.
ExitCode be_worker(comm::LaunchEnvironment environment,
                   const std::function<ExitCode(resilience::WorkerContext&)>& work);

}  // namespace trireme::cli
