// A worker: one rank of a training run, from its launch environment to its exit code.
#pragma once

#include "config/config.h"
#include "resilience/worker_context.h"

namespace trireme::train {

/// Trains `config` (as load_config gave it; it is resolved for the world here) as the rank that `context` says. Returns
/// ExitCode::done, or ExitCode::stopped after a stop was obeyed and a checkpoint saved. Throws Error otherwise; peers
/// are then told why, so that they end at once.
ExitCode run_worker(config::Config config, resilience::WorkerContext& context);

}  // namespace trireme::train
