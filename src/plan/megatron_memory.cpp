#include "plan/megatron_memory.h"

#include <algorithm>

namespace trireme::plan {

MegatronMemory megatron_memory(const Job& job, const Layout& layout) {
  const describe::ModelShape& d = job.shape.decoder;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double h = number(d.hidden), ffn = number(d.ffn), v = number(d.vocab), layers = number(d.layers);
  const double t = number(layout.tensor), p = number(layout.pipeline);
  const auto bytes = [&](double copies) { return layout.shard == Shard::none ? 18 : 6 + 12 / copies; };

  const double query = number(d.heads * d.head_dim);
  const double attention = 2 * h * query * (1 + number(d.kv_heads) / number(d.heads));
  const double gated = job.shape.is_gated() ? 1.5 : 1;
  const double norms = 2 * h * (d.is_gpt() ? 2 : 1);
  double split = attention, whole = norms, experts = 0;
  if (job.shape.has_experts()) {
    whole += h * number(job.shape.experts.experts);
    experts = 2 * h * gated * number(job.shape.experts.ffn * job.shape.experts.experts) / number(layout.expert);
    split += 2 * h * gated * number(job.shape.experts.shared_ffn);
  } else {
    split += 2 * h * ffn * gated;
  }
  const double tables = v * h * (layout.pipeline == 1 && !d.tied ? 2 : 1);
  const double here = layers / p, copies = number(shard_ranks(layout));
  const double expert_copies = t * copies / number(layout.expert);
  MegatronMemory result;
  result.weights_and_optimizer = ((here * split + tables) / t + here * whole + norms / 2) * bytes(copies) +
                                 here * experts * bytes(std::max(expert_copies, 1.0));

  const double s = number(job.seq_len), b = number(layout.micro_batch);
  double kept = s * b * h * (18 + 4 * ffn / h) * layers + 8 * s * b * p + s * b * h * p;
  if (layout.virtual_stages > 1) {
    kept *= 1 + (p - 1) / (p * number(layout.virtual_stages));
  } else {
    kept *= std::min(1.0, number(micro_batches(job, layout)) / p);
  }
  if (layout.pipeline == 1) kept += 4 * s * b * h * (1 + v / h);
  result.activations = kept / t;
  return result;
}

}  // namespace trireme::plan
