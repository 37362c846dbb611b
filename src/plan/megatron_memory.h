// Memory by the convention of Megatron-LM's own estimate (megatron/training/theoretical_memory_usage.py): for those who
// compare with it. It knows no experts' activations, no context ranks, no buffers and no overhead, so it is below what
// a run takes; memory.h is what a plan goes by.
#pragma once

#include "plan/job.h"

namespace trireme::plan {

struct MegatronMemory {
  double weights_and_optimizer = 0;  ///< bytes: 18 a parameter, or 6 + 12 / data ranks with a sharded optimizer
  double activations = 0;            ///< bytes, with sequence parallelism and the core of attention recomputed
};

/// Of the most loaded rank: its blocks, and one embedding (without a pipeline also the head).
MegatronMemory megatron_memory(const Job& job, const Layout& layout);

}  // namespace trireme::plan
