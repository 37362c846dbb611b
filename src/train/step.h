// One training step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/session.h"

namespace trireme::train {

struct StepResult {
  double loss = 0;       ///< mean over the valid tokens of the global batch, before the update
  double grad_norm = 0;  ///< global L2 norm before clipping
  double learning_rate = 0;
  double z_loss = 0;      ///< its share of what was minimised, beside `loss`
  double loss_scale = 1;  ///< that this step ran with (fp16)
  int64_t tokens = 0;     ///< of the global batch
  /// Weights and moments stayed as they were: the norm was not finite, or a spike. With optimizer.in_backward some of
  /// them have changed, and the run has to end.
  bool skipped = false;
  std::string skipped_parameter;  ///< the first parameter whose gradient was not finite; empty for a spike
  double usual_norm = 0;          ///< of a spike: the median that the norm was compared with
  double data_seconds = 0, exposed_comm_seconds = 0;
  int64_t peak_memory_bytes = 0;        ///< the highest of all ranks
  int64_t kept_activation_bytes = 0;    ///< what forward kept for backward, of one micro-batch; this rank's
  bool stop = false;                    ///< some rank asked to stop
  std::vector<double> parameter_norms;  ///< of each parameter, in the order of Model::trainable_parameters()
};

/// Collective. Advances session.progress. `wants_to_stop` tells this rank's wish, and is asked once, when the gradients
/// are there: a signal that comes during a step ends the run with that step, not with the next. The result's is
/// everybody's.
StepResult step(Session& session, const std::function<bool()>& wants_to_stop);

/// A batch as tensors: tokens and labels int64 [rows, seq_len] on `device`.
struct BatchTensors {
  at::Tensor tokens, labels;
  at::Tensor samples;  ///< [rows] int64 on the CPU: data::Batch::sample_ids
};
BatchTensors to_tensors(const data::Batch& batch, at::Device device);

}  // namespace trireme::train
