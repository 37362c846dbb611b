#include "train/link_speed.h"

#include <algorithm>

#include "base/error.h"
#include "plan/accelerator.h"

namespace trireme::train {
namespace {

comm::LinkSpeed link_speed(const std::string& axis, const config::LinkConfig& link, int64_t ranks) {
  comm::LinkSpeed speed{link.gb_per_s, link.latency_us};
  if (link.hardware.empty()) return speed;
  const plan::Accelerator hardware = plan::accelerator(link.hardware);
  const bool inside = static_cast<double>(ranks) <= hardware.scale_up_domain;
  speed.gb_per_s = inside ? hardware.scale_up_gbs : hardware.scale_out_gbs;
  if (speed.gb_per_s > 0) return speed;
  throw_input(
      "comm.emulate.{0}.hardware = \"{1}\": the catalogue does not know its {2}; give comm.emulate.{0}.gb_per_s", axis,
      link.hardware, inside ? "links" : "network");
}

}  // namespace

std::map<std::string, comm::LinkSpeed> link_speeds(const config::EmulateConfig& emulate,
                                                   const config::ParallelConfig& parallel) {
  // Copies lie apart from each other by as many ranks as divide one.
  const std::map<std::string, comm::LinkSpeed> all = {
      {"shard", link_speed("shard", emulate.shard, parallel.shard_size)},
      {"second_shard",
       link_speed("second_shard", emulate.second_shard, std::max<int64_t>(parallel.reshard_after_forward.group, 1))},
      {"replicate", link_speed("replicate", emulate.replicate, parallel.data)}};
  std::map<std::string, comm::LinkSpeed> emulated;
  for (const auto& [axis, speed] : all)
    if (speed.emulated()) emulated[axis] = speed;
  return emulated;
}

}  // namespace trireme::train
