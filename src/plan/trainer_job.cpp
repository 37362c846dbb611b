#include "plan/trainer_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "describe/architecture.h"

namespace trireme::plan {
namespace {

Precision precision_of(config::Precision precision, std::vector<std::string>& faults) {
  switch (precision) {
    case config::Precision::bf16:
      return Precision::bf16;
    case config::Precision::fp16:
      return Precision::fp16;
    case config::Precision::fp32:
      return Precision::fp32;
    case config::Precision::fp64:
      faults.emplace_back(
          "train.precision = \"fp64\" is not planned: accelerators' rates in it are not in the "
          "catalogue; bf16, fp16 and fp32 are");
  }
  return Precision::fp32;
}

}  // namespace

TrainerJob trainer_job(config::Config& config, int64_t gpus, const Accelerator& accelerator) {
  const int64_t accumulation = config::resolve_world(config, gpus);
  std::vector<std::string> faults;
  TrainerJob result;
  Job& job = result.job;
  job.precision = precision_of(config.train.precision, faults);
  if (describe::registered_architecture(config.model.architecture) != nullptr)
    faults.push_back(
        fmt::format("model.architecture = \"{}\" is registered by this program, and its operations are not "
                    "known; llama and gpt are planned",
                    config.model.architecture));
  if (config.train.activation_offload != config::Offload::none)
    faults.push_back(fmt::format("train.activation_offload = \"{}\" is not planned; \"none\" is",
                                 config::name_of(config.train.activation_offload)));
  if (config.optimizer.offload != config::Offload::none)
    faults.push_back(
        fmt::format("optimizer.offload = \"{}\" is not planned: the catalogue has no rates of hosts and disks; "
                    "\"none\" is",
                    config::name_of(config.optimizer.offload)));
  if (!faults.empty()) throw InputError(faults);
  job.shape.decoder = config.model;
  job.shape.name = config.model.preset.empty() ? config.model.architecture : config.model.preset;
  job.seq_len = config.train.seq_len;
  job.global_batch = config.train.global_batch_size;
  job.gpus = gpus;
  job.selective = Selective::cheap;
  if (config.train.gradient_dtype == "bf16") job.gradient_bytes = 2;
  job.loss_in_chunks = true;
  job.accelerator = accelerator;
  const config::ParallelConfig& parallel = config.parallel;
  const double scale = 4.0 / static_cast<double>(parallel.quantize_block);  // an element's share of it
  ExchangeOptions& exchange = job.exchange;
  if (parallel.quantize_weights != config::Quantize::none) exchange.gathered_bytes = 1 + scale;
  if (parallel.quantize_gradients != config::Quantize::none)
    exchange.reduced_bytes = (parallel.quantize_gradients == config::Quantize::int8 ? 1 : 0.5) + scale;
  exchange.error_feedback = parallel.quantize_error_feedback;
  exchange.second_shard_ranks = parallel.reshard_after_forward.group;
  const int64_t layers = config.model.layers;
  exchange.resident_blocks =
      parallel.reshard_after_forward.after_forward ? std::min(parallel.prefetch + 1, layers) : layers;
  job.update_in_backward = config.optimizer.in_backward;
  exchange.reduce_each_pass = parallel.reduce_every_micro_batch;
  result.layout.data = gpus;
  result.layout.micro_batch = config.train.micro_batch_size;
  result.layout.recompute = config.train.recompute;
  result.layout.shard = static_cast<Shard>(parallel.shard);
  if (parallel.shard != config::Shard::none) result.layout.replicas = parallel.replicas();
  const auto place = [&](const char* axis) { return std::ranges::find(parallel.order, axis); };
  // An order with a name has the ranks of a copy as neighbours.
  result.layout.replicas_innermost = result.layout.replicas > 1 && place("replicate") < place("shard");
  TRIREME_CHECK(micro_batches(job, result.layout) == accumulation, "{} and {} micro-batches",
                micro_batches(job, result.layout), accumulation);
  return result;
}

std::vector<std::string> missing_in_trainer(const Layout& layout) {
  std::vector<std::string> missing;
  for (const auto& [key, size] : {std::pair("tensor", layout.tensor),
                                  {"context", layout.context},
                                  {"pipeline", layout.pipeline},
                                  {"virtual_stages", layout.virtual_stages},
                                  {"expert", layout.expert}}) {
    if (size > 1) missing.push_back(fmt::format("parallel.{} = {}", key, size));
  }
  return missing;
}

config::Config with_layout(const config::Config& config, const Layout& layout) {
  const std::vector<std::string> missing = missing_in_trainer(layout);
  if (!missing.empty())
    throw_input(
        "`trireme train` does not have yet: {}; data ranks that keep the whole state or divide it are what it runs",
        fmt::join(missing, ", "));
  config::Config result = config;
  result.parallel.data = layout.data;
  static_assert(static_cast<int>(Shard::parameters) == static_cast<int>(config::Shard::parameters));
  result.parallel.shard = static_cast<config::Shard>(layout.shard);
  result.parallel.shard_size = layout.replicas > 1 ? shard_ranks(layout) : -1;
  // Options of another level than the layout's.
  const config::ParallelConfig standard;
  if (layout.shard != Shard::parameters) {
    result.parallel.prefetch = standard.prefetch;
    result.parallel.reshard_after_forward = standard.reshard_after_forward;
    result.parallel.quantize_weights = standard.quantize_weights;
  }
  if (layout.shard == Shard::none) {
    result.parallel.quantize_gradients = standard.quantize_gradients;
    result.parallel.quantize_error_feedback = standard.quantize_error_feedback;
  }
  if (result.parallel.quantize_weights == config::Quantize::none &&
      result.parallel.quantize_gradients == config::Quantize::none)
    result.parallel.quantize_block = standard.quantize_block;
  const int64_t group = result.parallel.reshard_after_forward.group;
  if (group > 0 && !has_second_shard(group, shard_ranks(layout)))
    result.parallel.reshard_after_forward = standard.reshard_after_forward;
  if (result.parallel.reshard_after_forward.group == 0) result.comm.emulate.second_shard = {};
  if (layout.shard < Shard::gradients) result.parallel.reduce_every_micro_batch = standard.reduce_every_micro_batch;
  result.train.micro_batch_size = layout.micro_batch;
  result.train.recompute = layout.recompute;
  return result;
}

int64_t default_global_batch(int64_t seq_len, int64_t gpus) {
  constexpr int64_t kTokens = int64_t{4} << 20;
  return std::max<int64_t>(std::max(kTokens, 1024 * gpus) / seq_len, 1);
}

int64_t default_seq_len(const describe::WorkShape& shape) { return std::min<int64_t>(shape.decoder.max_seq_len, 8192); }

}  // namespace trireme::plan
