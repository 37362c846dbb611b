#include "train/connect.h"

#include "comm/rendezvous.h"

namespace trireme::train {

std::shared_ptr<comm::Communicator> connect_world(resilience::WorkerContext& context, const std::string& backend,
                                                  std::chrono::milliseconds timeout) {
  comm::ConnectOptions options;
  options.backend = backend;
  options.timeout = timeout;
  // Workers start far apart where programs and libraries come from a cold network file system.
  options.connect_timeout = std::max(options.connect_timeout, timeout);
  options.cancelled = [] { return resilience::stop_signal() != resilience::StopReason::none; };
  if (context.status) {
    options.publish_port = [&](int port) { context.status->publish_port(static_cast<uint16_t>(port)); };
    options.await_port = [&](std::chrono::milliseconds patience) { return int{context.status->await_port(patience)}; };
  }
  return comm::connect(context.environment, options);
}

}  // namespace trireme::train
