// From a worker's context to the communicator of all ranks.
#pragma once

#include <filesystem>
#include <memory>

#include "comm/communicator.h"
#include "config/config.h"
#include "resilience/worker_context.h"

namespace trireme::train {

/// Collective. With our own launcher the port of the store travels over the status page. A request to stop that comes
/// while others are waited for ends the wait with comm::Cancelled. The flight recorder writes into `run_dir`/flight;
/// empty: none. `device`: where what the workers exchange lies. Errors: those of link_speeds().
std::shared_ptr<comm::Communicator> connect_world(resilience::WorkerContext& context, const config::CommConfig& config,
                                                  const std::filesystem::path& run_dir,
                                                  const config::ParallelConfig& parallel, config::Device device);

}  // namespace trireme::train
