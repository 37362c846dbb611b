#include "train/evaluate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <cmath>
#include <numbers>

#include "data/evaluation_windows.h"
#include "memory/purpose.h"
#include "ops/linear_cross_entropy.h"
#include "train/step.h"

namespace trireme::train {

std::optional<Evaluation> evaluate(models::Model& model, std::shared_ptr<const data::Dataset> dataset,
                                   comm::Communicator& data, const EvaluationOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const at::NoGradGuard no_grad;
  const memory::PurposeScope scope(memory::Purpose::activations);
  const data::EvaluationWindows windows(dataset, options.seq_len, options.micro_batch_size, data.rank(), data.size(),
                                        options.max_tokens);
  const at::Device device = model.head().value().device();
  double sum = 0;
  for (int64_t i = 0; i < windows.batch_count(); ++i) {
    if (options.wants_to_stop && i % kBatchesToStop == 0 && data.any(options.wants_to_stop())) return std::nullopt;
    const data::Batch batch = windows.batch(i);
    if (batch.valid_tokens == 0 && !options.collective) continue;
    const BatchTensors tensors = to_tensors(batch, device);
    const models::Pass pass = models::make_pass(tensors.tokens, options.document_mask, dataset->end_of_text());
    const at::Tensor hidden = models::forward(model, tensors.tokens, pass);
    const at::Tensor losses = ops::token_losses(hidden.reshape({-1, hidden.size(-1)}), model.head().weight().value,
                                                tensors.labels.reshape({-1}), model.shape().logit_softcap);
    sum += losses.to(at::kDouble).sum().item<double>();
  }
  sum = data.all_reduce_scalar(sum);
  Evaluation result;
  result.tokens = windows.tokens();
  result.bytes = windows.text_bytes();
  result.loss = sum / static_cast<double>(result.tokens);
  result.bits_per_byte = sum / std::numbers::ln2 / static_cast<double>(result.bytes);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace trireme::train
