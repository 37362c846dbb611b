#include "train/step.h"

#include <ATen/ATen.h>

#include "memory/process_memory.h"
#include "optim/gradient_norm.h"
#include "optim/schedule.h"

namespace trireme::train {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What all ranks must agree on before the update, in one small sum: the loss, whether a gradient is not finite, and
// whether anyone wants to stop.
struct Verdict {
  double loss;
  bool skip, stop;
};
Verdict agree(comm::Communicator& world, double loss, bool skip, bool stop) {
  const at::Tensor values = at::tensor({loss, skip ? 1.0 : 0.0, stop ? 1.0 : 0.0}, at::kDouble);
  world.all_reduce(values);
  return {values[0].item<double>(), values[1].item<double>() > 0, values[2].item<double>() > 0};
}

}  // namespace

BatchTensors to_tensors(const data::Batch& batch, at::Device device) {
  const auto tensor = [&](const std::vector<int32_t>& ids) {
    return at::from_blob(const_cast<int32_t*>(ids.data()), {batch.rows, batch.seq_len}, at::kInt).to(device, at::kLong);
  };
  return {tensor(batch.tokens), tensor(batch.labels)};
}

StepResult step(Session& s, const std::function<bool()>& wants_to_stop) {
  const auto start = std::chrono::steady_clock::now();
  StepResult result;

  // Data. The loss is a mean over the valid tokens of the whole global batch, so they are counted before any forward
  // pass; then every sum over micro-batches and ranks is the mean, and nothing divides later.
  const std::vector<data::Batch> batches = s.loader->next_step();
  int64_t valid = 0;
  for (const data::Batch& batch : batches) valid += batch.valid_tokens;
  result.data_seconds = seconds_since(start);
  const auto counting = std::chrono::steady_clock::now();
  valid = s.mesh->data().all_reduce_scalar(valid);
  result.exposed_comm_seconds = seconds_since(counting);
  const double scale = valid > 0 ? 1.0 / static_cast<double>(valid) : 0.0;

  // Forward and backward of each micro-batch; on the last one, gradients are summed over ranks as units complete.
  s.data_parallel->begin_step(static_cast<int64_t>(batches.size()));
  double loss = 0;
  for (const data::Batch& batch : batches) {
    const BatchTensors tensors = to_tensors(batch, s.device);
    const at::Tensor share = models::loss(*s.model, tensors.tokens, tensors.labels, scale,
                                          s.config.train.recompute == config::Recompute::full);
    share.backward();
    loss += share.item<double>();
  }
  s.data_parallel->finish_gradients();

  // Update. Every rank holds the same gradients and finds the same norm; whether to skip is agreed on all the same,
  // since ranks that took different ways here would never meet again.
  const std::vector<nn::Parameter*> parameters = s.model->parameters();
  const optim::GradientNorm norm = optim::gradient_norm(parameters);
  const auto agreeing = std::chrono::steady_clock::now();
  const Verdict verdict = agree(s.mesh->world(), loss, !norm.not_finite.empty(), wants_to_stop());
  result.exposed_comm_seconds += s.data_parallel->exposed_seconds() + seconds_since(agreeing);
  result.learning_rate = optim::learning_rate(s.config.lr_schedule, s.config.optimizer.lr, s.progress.step);
  result.skipped = verdict.skip;
  if (!result.skipped)
    s.optimizer->step(result.learning_rate, optim::clip_coefficient(norm.total, s.config.train.clip_grad_norm));

  s.progress.step += 1;
  s.progress.tokens += s.tokens_per_step();
  result.peak_memory_bytes = s.mesh->world().all_reduce_scalar(memory::peak_resident_bytes(), comm::ReduceOp::max);
  result.loss = verdict.loss;
  result.stop = verdict.stop;
  result.grad_norm = norm.total;
  result.parameter_norms = norm.each;
  result.skipped_parameter = norm.not_finite;
  return result;
}

}  // namespace trireme::train
