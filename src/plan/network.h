// Time of collectives by the alpha-beta model (Hockney, 1994; ring costs as in Thakur et al., 2005), on two tiers: the
// fast links of a domain, and the network between domains.
//
// A group that spans domains moves data over as many network ports as it has ranks in a domain: its bandwidth is
// min(fast link, ranks a domain x port). That is what a hierarchical ring, or rings over several rails, reach. Not
// modelled: reduction in the switch (NVLS, SHARP), over-subscription, and groups that use one port at the same time.
#pragma once

#include <cstdint>

#include "plan/job.h"

namespace trireme::plan {

/// Ranks that exchange: `size` of them, `stride` apart in the numbering of ranks.
struct Group {
  int64_t size = 1;
  int64_t stride = 1;
};

enum class Collective { all_reduce, all_gather, reduce_scatter };

class Network {
 public:
  explicit Network(const Job& job);

  /// Seconds. `bytes`: of the whole buffer, which all_gather ends with and reduce_scatter starts from.
  double seconds(Collective collective, double bytes, const Group& group) const;
  /// Each rank sends `bytes` in all, evenly to the others of the group: `copies` of each token. A token crosses to
  /// another domain once, however many of its copies are for it, and is copied on there (DeepSeek-V3, arXiv:2412.19437,
  /// section 3.2.2; DeepEP).
  double all_to_all(double bytes, double copies, const Group& group) const;
  /// Each rank sends each other its share of `bytes`, straight: what is for another domain crosses on the sender's own
  /// port, and what is for this one on the link to its peer.
  double direct_all_to_all(double bytes, const Group& group) const;
  /// One rank to the next of its group. A single transfer uses one link or port.
  double transfer(double bytes, const Group& group) const;
  /// Ranks of the group in one domain.
  double ranks_a_domain(const Group& group) const;

 private:
  double domain_, scale_up_, peer_, scale_out_, up_latency_, out_latency_;
};

}  // namespace trireme::plan
