// The size of the batch over a run. A pure function of the sequences seen, so a resumed run needs no state, and another
// number of workers sees the same batches.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace trireme::config {

/// Sequences of the step that begins after `seen` sequences: train.global_batch_size, or on the way there
/// batch_ramp.start
/// + increment x (whole stretches seen), a stretch being batch_ramp.samples / ((global - start) / increment) sequences
/// (Megatron-LM, core/num_microbatches_calculator.py, RampupBatchsizeNumMicroBatchesCalculator).
int64_t batch_size_at(const Config& config, int64_t seen);

/// Sequences of the first `steps` steps of a run.
int64_t sequences_of(const Config& config, int64_t steps);

}  // namespace trireme::config
