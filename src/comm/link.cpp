#include "comm/link.h"

#include <algorithm>
#include <cmath>

namespace trireme::comm {

WireCost ring_cost(Kind kind, int64_t ranks, int64_t bytes, int64_t block_bytes, int64_t exchanged_bytes) {
  const int64_t others = ranks - 1;
  if (others == 0) return {};
  switch (kind) {
    case Kind::all_reduce:
      return {2 * others, 2.0 * static_cast<double>(others) / static_cast<double>(ranks) * static_cast<double>(bytes)};
    case Kind::all_gather:
    case Kind::reduce_scatter:
    case Kind::gather:
    case Kind::scatter:
      return {others, static_cast<double>(others * block_bytes)};
    case Kind::broadcast:
    case Kind::reduce:
      return {others, static_cast<double>(bytes)};
    case Kind::all_to_all:
      return {others, static_cast<double>(exchanged_bytes)};
    case Kind::barrier:
      return {2 * others, 0};
    case Kind::send:
    case Kind::recv:
      return {1, static_cast<double>(bytes)};
    case Kind::none:
      break;
  }
  return {};
}

int64_t transfer_nanoseconds(const LinkSpeed& speed, const WireCost& cost) {
  const double latency = static_cast<double>(cost.steps) * speed.latency_us * 1e3;
  const double moving = speed.gb_per_s > 0 ? cost.bytes / speed.gb_per_s : 0;  // bytes / (1e9 bytes/s) in 1e-9 s
  return static_cast<int64_t>(std::ceil(latency + moving));
}

int64_t EmulatedLink::leave(int64_t arrival, const WireCost& cost) {
  const int64_t time = transfer_nanoseconds(speed_, cost);
  free_at_ = std::max(free_at_, arrival) + time;
  busy_ += time;
  return free_at_;
}

}  // namespace trireme::comm
