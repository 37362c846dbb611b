#include "plan/network.h"

#include <algorithm>
#include <cmath>

namespace trireme::plan {

Network::Network(const Job& job)
    : domain_(job.accelerator.scale_up_domain),
      scale_up_(job.accelerator.scale_up_gbs * 1e9 * job.constants.link_share),
      peer_(job.accelerator.peer_gbs * 1e9 * job.constants.link_share),
      scale_out_(job.accelerator.scale_out_gbs * 1e9 * job.constants.link_share),
      up_latency_(job.constants.scale_up_latency_us * 1e-6),
      out_latency_(job.constants.scale_out_latency_us * 1e-6) {
  if (peer_ <= 0) peer_ = scale_up_;
}

double Network::ranks_a_domain(const Group& group) const {
  return std::clamp(std::floor(domain_ / static_cast<double>(group.stride)), 1.0, static_cast<double>(group.size));
}

double Network::seconds(Collective collective, double bytes, const Group& group) const {
  if (group.size <= 1) return 0;
  const auto size = static_cast<double>(group.size);
  const double here = ranks_a_domain(group);
  const double rounds = collective == Collective::all_reduce ? 2 : 1;
  // A pair has one link between it where every peer has its own.
  double bandwidth = size == 2 && here == 2 ? peer_ : scale_up_;
  double latency = (here - 1) * up_latency_;
  if (here < size) {
    bandwidth = std::min(bandwidth, here * scale_out_);
    latency += std::ceil(std::log2(size / here)) * out_latency_;
  }
  return rounds * ((size - 1) / size * bytes / bandwidth + latency);
}

double Network::all_to_all(double bytes, double copies, const Group& group) const {
  if (group.size <= 1) return 0;
  const double here = ranks_a_domain(group);
  const double domains = static_cast<double>(group.size) / here;
  const double inside = (here - 1) / here * bytes / scale_up_;
  // Of `copies` random domains so many are different; one of them is the sender's own.
  const double reached = domains * (1 - std::pow(1 - 1 / domains, copies));
  const double outside = domains > 1 ? reached * (domains - 1) / domains * bytes / copies / scale_out_ : 0;
  // Both tiers work at the same time.
  return std::max(inside, outside) + (domains > 1 ? out_latency_ : up_latency_);
}

double Network::direct_all_to_all(double bytes, const Group& group) const {
  if (group.size <= 1) return 0;
  const double here = ranks_a_domain(group), away = static_cast<double>(group.size) - here;
  const double each = bytes / static_cast<double>(group.size);
  const double inside = here > 1 ? std::max(each / peer_, (here - 1) * each / scale_up_) : 0;
  if (away <= 0) return inside + up_latency_;
  return std::max(inside, away * each / scale_out_) + out_latency_;  // both tiers work at the same time
}

double Network::transfer(double bytes, const Group& group) const {
  if (group.size <= 1) return 0;
  const bool inside = ranks_a_domain(group) == static_cast<double>(group.size);
  return inside ? bytes / peer_ + up_latency_ : bytes / scale_out_ + out_latency_;
}

}  // namespace trireme::plan
