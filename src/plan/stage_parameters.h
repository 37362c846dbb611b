// Parameters that one rank of a pipeline stage holds.
#pragma once

#include "plan/job.h"

namespace trireme::plan {

struct StageParameters {
  double dense = 0;          ///< of everything but routed experts, on one tensor rank
  double experts = 0;        ///< of routed experts, on one expert rank
  double ends = 0;           ///< of `dense`, what is of no block: embedding, head, final norm
  double largest_block = 0;  ///< without routed experts
  double largest_unit = 0;   ///< of the largest block, embedding or head of the stage, without routed experts

  double all() const { return dense + experts; }
  double dense_blocks() const { return dense - ends; }
  /// Elements whose master and moments this rank updates.
  double optimizer_elements(const Job& job, const Layout& layout) const;
  StageParameters& operator+=(const StageParameters& other);
};

/// Blocks among `layers` from `first` on that keep the dense feed-forward layer.
int64_t dense_layers(const Job& job, int64_t first, int64_t layers);

/// Divided by the tensor ranks: matrices, and the tables of embedding and head by rows. Norms, the router and latent
/// down-projections are whole on each.
StageParameters stage_parameters(const Job& job, const Layout& layout, int64_t stage);

}  // namespace trireme::plan
