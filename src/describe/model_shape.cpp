#include "describe/model_shape.h"

#include <fmt/format.h>

#include <algorithm>

#include "describe/architecture.h"
#include "describe/divisors.h"

namespace trireme::describe {

namespace {

// GPT-2 has no place for what belongs to a Llama.
void gpt_faults(const ModelShape& shape, std::string_view prefix, std::vector<std::string>& faults) {
  const auto refuse = [&](bool given, std::string_view what) {
    if (given)
      faults.push_back(fmt::format("{}{}, and {}architecture is \"gpt\"; \"llama\" has it", prefix, what, prefix));
  };
  if (shape.kv_heads > 0 && shape.heads > 0 && shape.kv_heads != shape.heads && shape.heads % shape.kv_heads == 0)
    faults.push_back(
        fmt::format("{0}kv_heads = {1} is not {0}heads = {2}, and {0}architecture is \"gpt\", where every "
                    "query head has its own key and value; \"llama\" groups them",
                    prefix, shape.kv_heads, shape.heads));
  if (shape.head_dim > 0 && shape.heads > 0 && shape.head_dim * shape.heads != shape.hidden)
    faults.push_back(
        fmt::format("{0}heads x {0}head_dim = {1} x {2} is not {0}hidden = {3}, as \"gpt\" has it; "
                    "leave {0}head_dim out",
                    prefix, shape.heads, shape.head_dim, shape.hidden));
  refuse(shape.qkv_bias, "qkv_bias is for a Llama that has no other biases");
  refuse(shape.qk_norm, "qk_norm normalises queries and keys");
  refuse(shape.sliding_window > 0, "sliding_window limits what attention sees");
  refuse(shape.rope_scaling != RopeScaling{}, "rope_scaling stretches rotary positions");
  refuse(shape.rope_theta != ModelShape{}.rope_theta, "rope_theta is the base of rotary positions");
}

// Keys of rope_scaling that its type does not read.
void unread_faults(const RopeScaling& rope, std::string_view prefix, std::vector<std::string>& faults) {
  const RopeScaling standard;
  if (!rope.active() && rope != standard) {
    faults.push_back(
        fmt::format("{0}rope_scaling is given with {0}rope_scaling.factor = 1, which stretches nothing; the factor is "
                    "how many times "
                    "longer contexts are",
                    prefix));
    return;
  }
  if (rope.original_max_seq_len != standard.original_max_seq_len && (rope.type == "linear" || rope.type == "ntk"))
    faults.push_back(fmt::format(
        "{0}rope_scaling.original_max_seq_len belongs to {0}rope_scaling.type = \"llama3\" and \"yarn\", and the "
        "type is \"{1}\"",
        prefix, rope.type));
  const auto refuse = [&](bool given, std::string_view key, std::string_view type) {
    if (given && rope.type != type)
      faults.push_back(
          fmt::format("{0}rope_scaling.{1} belongs to {0}rope_scaling.type = \"{2}\", and the type is \"{3}\"", prefix,
                      key, type, rope.type));
  };
  refuse(rope.low_freq_factor != standard.low_freq_factor, "low_freq_factor", "llama3");
  refuse(rope.high_freq_factor != standard.high_freq_factor, "high_freq_factor", "llama3");
  refuse(rope.beta_fast != standard.beta_fast, "beta_fast", "yarn");
  refuse(rope.beta_slow != standard.beta_slow, "beta_slow", "yarn");
}

void rotary_faults(const ModelShape& shape, std::string_view prefix, std::vector<std::string>& faults) {
  if (shape.head_dim > 0 && shape.head_dim % 2 != 0) {
    faults.push_back(fmt::format("{}head_dim = {} is odd, and rotary positions turn pairs of features; {} or {} work",
                                 prefix, shape.head_dim, shape.head_dim + (shape.head_dim == 1 ? 1 : -1),
                                 shape.head_dim + (shape.head_dim == 1 ? 3 : 1)));
  }
  const RopeScaling& rope = shape.rope_scaling;
  unread_faults(rope, prefix, faults);
  if (rope.active() && rope.type == "llama3" && rope.high_freq_factor <= rope.low_freq_factor) {
    faults.push_back(fmt::format(
        "{0}rope_scaling.high_freq_factor = {1} is not above {0}rope_scaling.low_freq_factor = {2}; Llama 3 "
        "has 4 and 1",
        prefix, rope.high_freq_factor, rope.low_freq_factor));
  }
  if (rope.active() && rope.type == "yarn" && rope.beta_fast <= rope.beta_slow)
    faults.push_back(
        fmt::format("{0}rope_scaling.beta_fast = {1} is not above {0}rope_scaling.beta_slow = {2}; YaRN has 32 "
                    "and 1",
                    prefix, rope.beta_fast, rope.beta_slow));
  if (rope.active() && rope.type == "ntk" && shape.head_dim == 2)
    faults.push_back(
        fmt::format("{0}head_dim = 2 has one rotary frequency, and {0}rope_scaling.type = \"ntk\" spreads "
                    "them; \"linear\" works",
                    prefix));
}

}  // namespace

std::vector<std::string> shape_faults(const ModelShape& shape, std::string_view prefix) {
  std::vector<std::string> faults = option_faults(shape);
  if (!faults.empty()) return faults;  // a check of its own may read them
  if (const Architecture* own = registered_architecture(shape.architecture); own != nullptr && own->faults)
    return own->faults(shape);
  if (shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads != 0) {
    faults.push_back(fmt::format("{0}kv_heads = {1} does not divide {0}heads = {2}; {3}", prefix, shape.kv_heads,
                                 shape.heads, what_divides(shape.heads, shape.kv_heads)));
  }
  if (shape.is_gpt())
    gpt_faults(shape, prefix, faults);
  else
    rotary_faults(shape, prefix, faults);
  return faults;
}

ParameterCounts count_parameters(const ModelShape& shape) {
  if (const Architecture* own = registered_architecture(shape.architecture)) return own->count_parameters(shape);
  const int64_t query = shape.heads * shape.head_dim, key_value = shape.kv_heads * shape.head_dim;
  const int64_t projections = shape.hidden * (query + 2 * key_value) + query * shape.hidden;
  ParameterCounts counts;
  counts.embedding = shape.vocab * shape.hidden;
  counts.head = shape.tied ? 0 : shape.vocab * shape.hidden;
  if (shape.is_gpt()) {
    counts.positions = shape.max_seq_len * shape.hidden;
    counts.attention = shape.layers * (projections + query + 2 * key_value + shape.hidden);
    counts.feed_forward = shape.layers * (2 * shape.hidden * shape.ffn + shape.ffn + shape.hidden);
    counts.norm = (2 * shape.layers + 1) * 2 * shape.hidden;
    return counts;
  }
  const int64_t biases = shape.qkv_bias ? query + 2 * key_value : 0;
  counts.attention = shape.layers * (projections + biases);
  counts.feed_forward = shape.layers * 3 * shape.hidden * shape.ffn;
  counts.norm = (2 * shape.layers + 1) * shape.hidden + (shape.qk_norm ? shape.layers * 2 * shape.head_dim : 0);
  return counts;
}

double causal_tokens_seen(int64_t seq_len, int64_t window) {
  const auto length = static_cast<double>(seq_len);
  const double reach = window > 0 ? std::min(static_cast<double>(window), length) : length;
  return reach - reach * (reach - 1) / (2 * length);
}

double model_flops_per_token(const ModelShape& shape, int64_t seq_len, AttentionFlops attention) {
  const ParameterCounts counts = count_parameters(shape);
  // A tied table multiplies once, as the head; a free one is only looked up.
  const double multiplying =
      static_cast<double>(counts.total() - counts.positions - (shape.tied ? 0 : counts.embedding));
  const auto length = static_cast<double>(seq_len);
  const double window = shape.sliding_window > 0 ? std::min(static_cast<double>(shape.sliding_window), length) : length;
  const double seen = attention == AttentionFlops::full ? window : causal_tokens_seen(seq_len, shape.sliding_window);
  return 6 * multiplying +
         12 * static_cast<double>(shape.layers) * static_cast<double>(shape.heads * shape.head_dim) * seen;
}

}  // namespace trireme::describe
