// What is known about a step, and about an evaluation, when it has ended: the trainer fills it in, metrics.jsonl and
// the console show it. docs/metrics.md says what each number means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::observe {

/// What tensors hold on rank 0, in bytes. Counted by the caching allocator; the peak is of the interval.
struct TensorMemory {
  int64_t allocated = 0;                                      ///< when the step had ended, in blocks
  int64_t reserved = 0;                                       ///< taken from the system: allocated, and kept for reuse
  int64_t peak_allocated = 0;                                 ///< the most at one moment
  int64_t kept_for_backward = 0;                              ///< by the forward pass of one micro-batch
  std::vector<std::pair<std::string, int64_t>> at_peak;       ///< by purpose at the moment of the peak, as asked for
  std::vector<std::pair<std::string, int64_t>> host_at_peak;  ///< what of that is in the host's tier
  int64_t peak_device = 0;  ///< the most at one moment of what is not in the host's tier, as asked for
};

/// One training step, or the interval of `metrics.interval` steps that ends with it: rates and times are then means
/// over the interval (see ThroughputMeter), loss and norms are those of `step` itself.
struct StepRecord {
  int64_t step = 0;              ///< counted from 1: the number of finished steps
  double loss = 0;               ///< mean over the valid tokens of the whole global batch, in nats
  double grad_norm = 0;          ///< global 2-norm before clipping
  double lr = 0;                 ///< of this step
  int64_t tokens = 0;            ///< seen since the start of the run, all workers, this step included
  double tokens_per_second = 0;  ///< all workers
  double mfu = 0;                ///< model FLOPs a second / measured matmul rate of all workers; NaN: not measured
  double step_time_s = 0;
  double data_time_s = 0;     ///< waiting for the loader, within the step
  double comm_exposed_s = 0;  ///< waiting for other workers, within the step
  int64_t peak_memory_bytes = 0;
  std::optional<TensorMemory> memory;                            ///< none: without the caching allocator
  std::vector<std::pair<std::string, double>> layer_grad_norms;  ///< in the order of the model; empty: not asked for
  std::optional<double> z_loss;                                  ///< what z-loss adds to `loss`; none: not asked for
  std::optional<double> loss_scale;                              ///< of the fp16 loss; none: another precision
  bool skipped = false;           ///< no weight was changed: a norm that is not finite, or a spike
  bool skipped_late = false;      ///< some weights were, before that was known
  std::string skipped_parameter;  ///< the first parameter with a non-finite gradient; empty for a spike
  double usual_norm = 0;          ///< of a spike: the median norm it was compared with; for a person only
  double seconds_left = 0;        ///< until the last step; for a person only, not in metrics.jsonl. Negative: not known
};

/// One pass over the windows of a held-out set.
struct EvalRecord {
  int64_t step = 0;               ///< finished steps at that moment
  std::string set = {};           ///< its name in eval.sets; empty: data.eval_path
  double eval_loss = 0;           ///< mean over `tokens`, in nats
  double eval_bits_per_byte = 0;  ///< sum of the losses / ln 2 / `bytes`
  int64_t tokens = 0;             ///< that were predicted
  int64_t bytes = 0;              ///< of text that they stand for
  double seconds = 0;             ///< for a person only, not in metrics.jsonl
};

/// One pass over a file of multiple-choice questions.
struct ChoiceRecord {
  int64_t step = 0;
  std::string suite = {};  ///< its name in eval.choices
  double acc = 0;          ///< share of the questions whose right choice has the highest log-probability
  double acc_norm = 0;     ///< the same for log-probability / bytes of the choice
  int64_t questions = 0;
  double seconds = 0;  ///< for a person only, not in metrics.jsonl
};

/// Ends the name of what was evaluated with the moving average of the weights. No name of a user has it.
inline constexpr const char* kAverageSuffix = "@ema";

/// The key of a number of an evaluation: "eval_loss", or "eval_loss/NAME" for what has a name.
inline std::string eval_key(std::string_view number, std::string_view name) {
  std::string key(number);
  return name.empty() ? key : key.append("/").append(name);
}

}  // namespace trireme::observe
