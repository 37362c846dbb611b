#include "describe/model_shape.h"

#include <fmt/format.h>

#include "describe/architecture.h"
#include "describe/divisors.h"

namespace trireme::describe {

std::vector<std::string> shape_faults(const ModelShape& shape, std::string_view prefix) {
  std::vector<std::string> faults = option_faults(shape);
  if (!faults.empty()) return faults;  // a check of its own may read them
  if (const Architecture* own = registered_architecture(shape.architecture); own != nullptr && own->faults)
    return own->faults(shape);
  if (shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads != 0) {
    faults.push_back(fmt::format("{0}kv_heads = {1} does not divide {0}heads = {2}; {3}", prefix, shape.kv_heads,
                                 shape.heads, what_divides(shape.heads, shape.kv_heads)));
  }
  if (shape.head_dim > 0 && shape.head_dim % 2 != 0) {
    faults.push_back(fmt::format("{}head_dim = {} is odd, and rotary positions turn pairs of features; {} or {} work",
                                 prefix, shape.head_dim, shape.head_dim + (shape.head_dim == 1 ? 1 : -1),
                                 shape.head_dim + (shape.head_dim == 1 ? 3 : 1)));
  }
  const RopeScaling& rope = shape.rope_scaling;
  if (rope.active() && rope.high_freq_factor <= rope.low_freq_factor) {
    faults.push_back(fmt::format(
        "{0}rope_scaling.high_freq_factor = {1} is not above {0}rope_scaling.low_freq_factor = {2}; Llama 3 "
        "has 4 and 1",
        prefix, rope.high_freq_factor, rope.low_freq_factor));
  }
  return faults;
}

ParameterCounts count_parameters(const ModelShape& shape) {
  if (const Architecture* own = registered_architecture(shape.architecture)) return own->count_parameters(shape);
  const int64_t query = shape.heads * shape.head_dim, key_value = shape.kv_heads * shape.head_dim;
  ParameterCounts counts;
  counts.embedding = shape.vocab * shape.hidden;
  counts.attention = shape.layers * (shape.hidden * (query + 2 * key_value) + query * shape.hidden);
  counts.feed_forward = shape.layers * 3 * shape.hidden * shape.ffn;
  counts.norm = (2 * shape.layers + 1) * shape.hidden;
  counts.head = shape.tied ? 0 : shape.vocab * shape.hidden;
  return counts;
}

double model_flops_per_token(const ModelShape& shape, int64_t seq_len, AttentionFlops attention) {
  const ParameterCounts counts = count_parameters(shape);
  // A tied table multiplies once, as the head; a free one is only looked up.
  const double multiplying = static_cast<double>(counts.total() - (shape.tied ? 0 : counts.embedding));
  const double seen =
      attention == AttentionFlops::full ? static_cast<double>(seq_len) : (static_cast<double>(seq_len) + 1) / 2;
  return 6 * multiplying +
         12 * static_cast<double>(shape.layers) * static_cast<double>(shape.heads * shape.head_dim) * seen;
}

}  // namespace trireme::describe
