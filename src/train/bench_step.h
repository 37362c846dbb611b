// The real step of a run, measured: what `trireme bench step` tells.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "memory/caching_allocator.h"

namespace trireme::train {

struct StepBenchOptions {
  int64_t warmup_steps = 3;  ///< the allocator's blocks and the products' kernels are made in the first
  int64_t steps = 20;
};

struct StepBench {
  bool random_tokens = false;  ///< the config's data is not there
  int64_t tokens = 0;          ///< of a step
  std::vector<double> step_s;  ///< of each measured step
  double flops_per_token = 0;  ///< the model's, by PaLM's convention
  double matmul_flops_per_second = 0;
  double page_faults = 0,
         system_allocations = 0;  ///< a step; minor and major faults, and calls for memory of the system
  int64_t peak_resident_bytes = 0;
  memory::BesideBlocks beside;          ///< before the first step
  memory::AllocatorStatistics tensors;  ///< at the end; the peak is that of the measured steps
  int64_t kept_activation_bytes = 0;    ///< by the forward pass of a micro-batch
  double loss = 0;                      ///< of the last step

  double median_s() const;
  double p95_s() const;
  double tokens_per_second() const { return static_cast<double>(tokens) / median_s(); }
  /// Of the rate of matrix products that was measured before the steps.
  double mfu() const { return tokens_per_second() * flops_per_token / matmul_flops_per_second; }
};

/// Runs the steps of a run with one worker in this process, from its initial weights, on its data or, where data.path
/// is not prepared, on random tokens. Nothing is written to run.dir; what has to be written goes to a temporary folder.
/// Throws InputError as `train` does, and for CUDA, whose memory and faults are not seen here.
StepBench bench_step(config::Config config, const StepBenchOptions& options);

}  // namespace trireme::train
