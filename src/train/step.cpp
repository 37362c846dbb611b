#include "train/step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/profile.h"
#include "memory/caching_allocator.h"
#include "memory/process_memory.h"
#include "ops/sum_of_squares.h"
#include "optim/gradient_norm.h"
#include "optim/schedule.h"

namespace trireme::train {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool for_any_workers(const Session& s) { return s.config.run.reproducible == config::Reproducible::any_workers; }

// Of a micro-batch, or a sum of them.
struct Losses {
  double loss = 0, z_loss = 0;
  Losses& operator+=(const Losses& other) {
    loss += other.loss;
    z_loss += other.z_loss;
    return *this;
  }
};

// What all ranks must agree on before the update, in one small sum: the losses, whether a gradient is not finite or the
// norm a spike, and whether anyone wants to stop.
struct Verdict {
  double loss, z_loss;
  bool not_finite, spike, stop;
};
Verdict agree(comm::Communicator& world, const Verdict& mine) {
  const auto number = [](bool yes) { return yes ? 1.0 : 0.0; };
  const at::Tensor values =
      at::tensor({mine.loss, mine.z_loss, number(mine.not_finite), number(mine.spike), number(mine.stop)}, at::kDouble);
  world.all_reduce(values);
  const auto at = [&](int64_t i) { return values[i].item<double>(); };
  return {at(0), at(1), at(2) > 0, at(3) > 0, at(4) > 0};
}

models::Pass training_pass(const Session& s, const BatchTensors& batch) {
  const config::Config& config = s.config;
  models::Pass pass = models::make_pass(batch.tokens, config.train.document_mask, s.dataset->end_of_text());
  pass.dropout = {config.model.dropout, static_cast<uint64_t>(config.run.seed), batch.samples};
  pass.recompute = config.train.recompute;
  pass.recompute_blocks = config.train.recompute_blocks;
  pass.offload = s.offload;
  return pass;
}

// The parts of a step, each a section of a profile.
std::vector<data::Batch> next_batches(data::Loader& loader) {
  const profile::Scope scope(profile::Phase::data, "wait for data", [] { return profile::Work{}; });
  return loader.next_step();
}

at::Tensor forward(const Session& s, const BatchTensors& batch, const models::LossOptions& options) {
  const profile::Scope scope(profile::Kind::section, profile::Phase::forward, "forward");
  const memory::PurposeScope purpose(memory::Purpose::activations);
  return models::loss(*s.model, batch.tokens, batch.labels, training_pass(s, batch), options);
}

void backward(const at::Tensor& loss) {
  const profile::Scope scope(profile::Kind::section, profile::Phase::backward, "backward");
  const memory::PurposeScope purpose(memory::Purpose::workspace);
  loss.backward();
}

optim::GradientNorm gradient_norm(const Session& s, double loss_scale) {
  const profile::Scope scope(profile::Kind::section, profile::Phase::optimizer, "gradient norm");
  return optim::gradient_norm(s.optimizer->parameters(), s.data_parallel->shards(), loss_scale, for_any_workers(s));
}

// Sums over all micro-batches of all ranks. Where the number of ranks may change no bit, they are added one by one in
// the order of the micro-batches.
Losses sum_over_micro_batches(const Session& s, const std::vector<Losses>& mine) {
  Losses sum;
  if (!for_any_workers(s)) {
    for (const Losses& each : mine) sum += each;
    return sum;  // of this rank: agree() sums over ranks
  }
  const comm::Communicator& data = s.mesh->data();
  const auto batches = static_cast<int64_t>(mine.size());
  const at::Tensor all = at::zeros({batches * data.size(), 2}, at::kDouble);
  for (int64_t i = 0; i < batches; ++i) {
    const Losses& each = mine[static_cast<size_t>(i)];
    const int64_t place = s.data_parallel->micro_batch_order().index(i, batches);
    all[place][0] = each.loss;
    all[place][1] = each.z_loss;
  }
  s.mesh->data().all_reduce(all);  // each is 0 on all ranks but one
  for (int64_t i = 0; i < all.size(0); ++i) sum += {all[i][0].item<double>(), all[i][1].item<double>()};
  // What agree() sums up again: all of it on one rank.
  return data.rank() == 0 ? sum : Losses();
}

// optimizer.in_backward: weights are updated as soon as their gradients are there. What is left of those is their norm.
class UpdateInBackward {
 public:
  UpdateInBackward(Session& session, double learning_rate) : session_(session) {
    squares_.resize(session.optimizer->parameters().size());
    session.optimizer->begin_step(learning_rate, 1);
  }

  void operator()(std::span<nn::Parameter* const> parameters) {
    const memory::PurposeScope purpose(memory::Purpose::workspace);
    bool finite = true;
    for (const nn::Parameter* parameter : parameters) {
      const double square = squares_[session_.optimizer->index_of(parameter)] =
          ops::sum_of_squares(parameter->gradient());
      finite = finite && std::isfinite(square);
    }
    if (finite) session_.optimizer->update(parameters);
  }

  /// Collective over the shards.
  optim::GradientNorm norm() {
    return optim::gradient_norm(session_.optimizer->parameters(), squares_, session_.data_parallel->shards());
  }

 private:
  Session& session_;
  std::vector<double> squares_;
};

void update(Session& s, double learning_rate, double gradient_scale) {
  const profile::Scope scope(profile::Kind::section, profile::Phase::optimizer, "update");
  if (!s.config.optimizer.in_backward) s.optimizer->step(learning_rate, gradient_scale);
  s.data_parallel->publish_weights();
  if (s.ema) s.ema->update(s.optimizer->updates());
}

}  // namespace

BatchTensors to_tensors(const data::Batch& batch, at::Device device) {
  const auto tensor = [&](const std::vector<int32_t>& ids) {
    return at::from_blob(const_cast<int32_t*>(ids.data()), {batch.rows, batch.seq_len}, at::kInt).to(device, at::kLong);
  };
  const at::Tensor samples = at::empty({batch.rows}, at::kLong);
  std::copy(batch.sample_ids.begin(), batch.sample_ids.end(), samples.mutable_data_ptr<int64_t>());
  return {tensor(batch.tokens), tensor(batch.labels), samples};
}

StepResult step(Session& s, const std::function<bool()>& wants_to_stop) {
  const auto start = std::chrono::steady_clock::now();
  const profile::Scope whole(profile::Kind::step, profile::Phase::other, "step", s.progress.step + 1);
  StepResult result;

  // Data. The loss is a mean over the valid tokens of the whole global batch, so they are counted before any forward
  // pass; then every sum over micro-batches and ranks is the mean, and nothing divides later.
  result.tokens = s.loader->global_batch_size() * s.config.train.seq_len;
  const std::vector<data::Batch> batches = next_batches(*s.loader);
  int64_t valid = 0;
  for (const data::Batch& batch : batches) valid += batch.valid_tokens;
  result.data_seconds = seconds_since(start);
  const auto counting = std::chrono::steady_clock::now();
  valid = s.mesh->data().all_reduce_scalar(valid);
  result.exposed_comm_seconds = seconds_since(counting);
  const double scale = valid > 0 ? 1.0 / static_cast<double>(valid) : 0.0;
  const double loss_scale = result.loss_scale = s.loss_scaler->scale();

  // Forward and backward of each micro-batch; gradients are exchanged as units complete, on the last one or on each.
  result.learning_rate = optim::learning_rate(s.config.lr_schedule, s.config.optimizer.lr, s.progress.step);
  std::optional<UpdateInBackward> in_backward;
  if (s.config.optimizer.in_backward) in_backward.emplace(s, result.learning_rate);
  s.data_parallel->begin_step(static_cast<int64_t>(batches.size()),
                              in_backward ? std::ref(*in_backward) : parallel::DataParallel::Use());
  std::vector<Losses> of_batches;
  for (const data::Batch& batch : batches) {
    const BatchTensors tensors = to_tensors(batch, s.device);
    double z_part = 0;
    const at::Tensor share =
        forward(s, tensors, {.scale = scale * loss_scale, .z_loss = s.config.train.z_loss, .z_part = &z_part});
    result.kept_activation_bytes = std::max(
        result.kept_activation_bytes, memory::of(memory::allocator_statistics().live, memory::Purpose::activations));
    backward(share);
    of_batches.push_back({(share.item<double>() - z_part) / loss_scale, z_part / loss_scale});
  }
  s.data_parallel->finish_gradients();

  const memory::PurposeScope purpose(memory::Purpose::workspace);
  // Update. Every rank finds the same norm; whether to skip is agreed on all the same, since ranks that took different
  // ways here would never meet again. Nobody writes weights before all are through with this step's.
  const optim::GradientNorm norm = in_backward ? in_backward->norm() : gradient_norm(s, loss_scale);
  const auto agreeing = std::chrono::steady_clock::now();
  const auto [loss, z_loss] = sum_over_micro_batches(s, of_batches);
  const Verdict verdict = agree(
      s.mesh->world(), {loss, z_loss, !norm.not_finite.empty(), s.spike_guard->is_spike(norm.total), wants_to_stop()});
  result.exposed_comm_seconds += s.data_parallel->exposed_seconds() + seconds_since(agreeing);
  result.skipped = verdict.not_finite || verdict.spike;
  if (verdict.spike) result.usual_norm = s.spike_guard->median();
  s.loss_scaler->update(!verdict.not_finite);
  if (result.skipped)
    s.data_parallel->discard_step();
  else
    update(s, result.learning_rate, optim::clip_coefficient(norm.total, s.config.train.clip_grad_norm) / loss_scale);
  if (!verdict.not_finite) s.spike_guard->remember(norm.total);

  s.progress.step += 1;
  s.progress.tokens += result.tokens;
  result.peak_memory_bytes = s.mesh->world().all_reduce_scalar(memory::peak_resident_bytes(), comm::ReduceOp::max);
  result.loss = verdict.loss;
  result.z_loss = verdict.z_loss;
  result.stop = verdict.stop;
  result.grad_norm = norm.total;
  result.parameter_norms = norm.each;
  result.skipped_parameter = norm.not_finite;
  return result;
}

}  // namespace trireme::train
