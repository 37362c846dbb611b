#include "train/connect.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "comm/rendezvous.h"
#include "train/link_speed.h"

namespace trireme::train {

std::shared_ptr<comm::Communicator> connect_world(resilience::WorkerContext& context, const config::CommConfig& config,
                                                  const std::filesystem::path& run_dir,
                                                  const config::ParallelConfig& parallel, config::Device device) {
  comm::ConnectOptions options;
  options.backend = std::string(config::name_of(config.backend));
  options.on_gpus = device == config::Device::cuda;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(config.timeout_s * 1000));
  options.settings = std::make_shared<comm::GroupSettings>();
  static_assert(static_cast<int>(comm::CheckLevel::all) == static_cast<int>(config::CommCheck::all));
  options.settings->check = static_cast<comm::CheckLevel>(config.check);
  options.settings->links = link_speeds(config.emulate, parallel);
  if (context.environment.rank == 0 && context.environment.world_size > 1) {
    for (const auto& [axis, speed] : options.settings->links)
      log::info("exchange of the {} axis as over a link of {} and {} us a step: times are not this machine's", axis,
                speed.gb_per_s > 0 ? fmt::format("{} GB/s", speed.gb_per_s) : "any bandwidth", speed.latency_us);
  }
  if (!run_dir.empty()) options.flight_folder = run_dir / "flight";
  options.flight_capacity = config.flight_recorder;
  // Workers start far apart where programs and libraries come from a cold network file system.
  options.connect_timeout = std::max(options.connect_timeout, options.timeout);
  options.cancelled = [] { return resilience::stop_signal() != resilience::StopReason::none; };
  if (context.status) {
    options.publish_port = [&](int port) { context.status->publish_port(static_cast<uint16_t>(port)); };
    options.await_port = [&](std::chrono::milliseconds patience) { return int{context.status->await_port(patience)}; };
  }
  return comm::connect(context.environment, options);
}

}  // namespace trireme::train
