#include "train/link_speed.h"

#include "base/error.h"
#include "plan/accelerator.h"

namespace trireme::train {

comm::LinkSpeed link_speed(const config::LinkConfig& link, int64_t ranks) {
  comm::LinkSpeed speed{link.gb_per_s, link.latency_us};
  if (link.hardware.empty()) return speed;
  const plan::Accelerator hardware = plan::accelerator(link.hardware);
  const bool inside = static_cast<double>(ranks) <= hardware.scale_up_domain;
  speed.gb_per_s = inside ? hardware.scale_up_gbs : hardware.scale_out_gbs;
  if (speed.gb_per_s > 0) return speed;
  throw_input(
      "comm.emulate.data.hardware = \"{}\": the catalogue does not know its {}; give comm.emulate.data.gb_per_s",
      link.hardware, inside ? "links" : "network");
}

}  // namespace trireme::train
