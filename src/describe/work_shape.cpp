#include "describe/work_shape.h"

#include <fmt/format.h>

#include "describe/divisors.h"

namespace trireme::describe {
namespace {

/// Weights and, in GPT-2, biases of a feed-forward layer.
int64_t feed_forward(const WorkShape& shape, int64_t width) {
  const int64_t hidden = shape.decoder.hidden;
  return shape.is_gated() ? 3 * hidden * width : 2 * hidden * width + width + hidden;
}

int64_t attention(const WorkShape& shape) {
  const ModelShape& d = shape.decoder;
  if (shape.is_latent()) {
    const LatentAttention& l = shape.latent;
    const int64_t query_dim = d.heads * (l.content_dim + l.rotary_dim);
    const int64_t query =
        l.query_rank > 0 ? d.hidden * l.query_rank + l.query_rank + l.query_rank * query_dim : d.hidden * query_dim;
    const int64_t down = d.hidden * (l.kv_rank + l.rotary_dim) + l.kv_rank;
    const int64_t up = l.kv_rank * d.heads * (l.content_dim + l.value_dim);
    return query + down + up + d.heads * l.value_dim * d.hidden;
  }
  const int64_t query = d.heads * d.head_dim, key_value = d.kv_heads * d.head_dim;
  const int64_t biases = d.is_gpt() ? query + 2 * key_value + d.hidden : d.qkv_bias ? query + 2 * key_value : 0;
  return d.hidden * (query + 2 * key_value) + query * d.hidden + biases;
}

}  // namespace

WorkParameters count_work_parameters(const WorkShape& shape) {
  const ModelShape& d = shape.decoder;
  const int64_t norm = d.is_gpt() ? 2 * d.hidden : d.hidden;
  WorkParameters counts;
  counts.embedding = d.vocab * d.hidden + (d.is_gpt() ? d.max_seq_len * d.hidden : 0);
  counts.head = d.tied ? 0 : d.vocab * d.hidden;
  counts.final_norm = norm;
  counts.layer_attention = attention(shape);
  counts.layer_norm = 2 * norm + (d.qk_norm ? 2 * d.head_dim : 0);
  counts.dense_ffn = feed_forward(shape, d.ffn);
  if (shape.has_experts()) {
    counts.router = d.hidden * shape.experts.experts;
    counts.shared_experts = shape.experts.shared_ffn > 0 ? feed_forward(shape, shape.experts.shared_ffn) : 0;
    counts.one_expert = feed_forward(shape, shape.experts.ffn);
  }
  const int64_t with_experts = shape.expert_layers(), dense = d.layers - with_experts;
  const int64_t every_layer = counts.layer_attention + counts.layer_norm;
  const int64_t expert_block = counts.router + counts.shared_experts + shape.experts.experts * counts.one_expert;
  // A further token: two norms and a projection of two hidden states to one, before a block like the last ones.
  const int64_t last_block = every_layer + (with_experts > 0 ? expert_block : counts.dense_ffn);
  counts.mtp = shape.mtp_layers * (last_block + 2 * d.hidden * d.hidden + 3 * norm);
  const int64_t around = counts.embedding + counts.head + counts.final_norm;
  counts.total = around + d.layers * every_layer + dense * counts.dense_ffn + with_experts * expert_block + counts.mtp;
  counts.active = around + d.layers * every_layer + dense * counts.dense_ffn +
                  with_experts * (counts.router + counts.shared_experts + shape.experts.active * counts.one_expert);
  return counts;
}

std::vector<std::string> work_shape_faults(const WorkShape& shape) {
  std::vector<std::string> faults = shape_faults(shape.decoder);
  const ExpertShape& e = shape.experts;
  const auto require = [&](bool holds, std::string message) {
    if (!holds) faults.push_back(std::move(message));
  };
  if (shape.has_experts()) {
    require(e.active >= 1 && e.active <= e.experts,
            fmt::format("experts.active = {} of experts.experts = {}; 1 to {} work", e.active, e.experts, e.experts));
    require(e.ffn >= 1, fmt::format("experts.ffn = {}: the width of an expert is at least 1", e.ffn));
    require(e.dense_layers >= 0 && e.dense_layers < shape.decoder.layers,
            fmt::format("experts.dense_layers = {} of model.layers = {}; 0 to {} work", e.dense_layers,
                        shape.decoder.layers, shape.decoder.layers - 1));
  }
  return faults;
}

}  // namespace trireme::describe
