// The emulation of a slower link between ranks: what a layout would wait for on other hardware, on this machine.
//
// Each operation of a group with a link takes at least
//     steps x latency + bytes on the wire / bandwidth,
// the time of the ring algorithm, from the moment at which its last rank posted it, or at which the operation before it
// left the link. It works as if a device moved the data: the time runs while ranks compute, and wait() blocks for what
// is left of it. All ranks see the same moments, since they read the same clock and the same times of posting.
//
// Ring formulas, for n ranks, with block = the largest block of a rank (NCCL's tuning model has the same steps; see
// also R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", 2005):
//     all_reduce                   2 (n-1) steps, 2 (n-1)/n of the bytes
//     reduce_scatter, all_gather   n-1 steps, n-1 blocks
//     gather, scatter              n-1 steps, n-1 blocks (over the root's link)
//     broadcast, reduce            n-1 steps, all bytes (a pipelined ring)
//     all_to_all                   n-1 steps, the most that a rank sends to others or gets from others
//     barrier                      2 (n-1) steps
//     send, recv                   1 step, all bytes; each direction of a pair is a link of its own
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "comm/call.h"

namespace trireme::comm {

struct LinkSpeed {
  double gb_per_s = 0;    ///< 1e9 bytes a second; 0: without limit
  double latency_us = 0;  ///< of one step

  bool emulated() const { return gb_per_s > 0 || latency_us > 0; }
};

/// What the ring moves: steps one after another, and bytes over each rank's link.
struct WireCost {
  int64_t steps = 0;
  double bytes = 0;
};

/// `bytes`: of the tensor (all_reduce, broadcast, reduce, messages). `block_bytes`: the largest block of a rank
/// (gathers and scatters). `exchanged_bytes`: all_to_all, the most that a rank sends or gets.
WireCost ring_cost(Kind kind, int64_t ranks, int64_t bytes, int64_t block_bytes, int64_t exchanged_bytes);

/// Time that `cost` takes on `speed`, rounded up.
int64_t transfer_nanoseconds(const LinkSpeed& speed, const WireCost& cost);

/// One link that serves one operation after another.
class EmulatedLink {
 public:
  explicit EmulatedLink(LinkSpeed speed = {}) : speed_(speed) {}

  /// The moment at which an operation that all ranks had posted at `arrival` leaves the link. Calls in the order of the
  /// operations.
  int64_t leave(int64_t arrival, const WireCost& cost);
  /// Time in which the link was in use so far.
  int64_t busy_nanoseconds() const { return busy_; }
  const LinkSpeed& speed() const { return speed_; }

 private:
  LinkSpeed speed_;
  int64_t free_at_ = 0;
  int64_t busy_ = 0;
};

}  // namespace trireme::comm
