// From a worker's context to the communicator of all ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "resilience/worker_context.h"

namespace trireme::train {

/// Collective. With our own launcher the port of the store travels over the status page. A request to stop that comes
/// while others are waited for ends the wait with comm::Cancelled.
std::shared_ptr<comm::Communicator> connect_world(resilience::WorkerContext& context, const std::string& backend,
                                                  std::chrono::milliseconds timeout);

}  // namespace trireme::train
