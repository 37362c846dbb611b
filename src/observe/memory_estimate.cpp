#include "observe/memory_estimate.h"

#include <fmt/format.h>

#include <algorithm>

#include "describe/architecture.h"

namespace trireme::observe {
namespace {

struct Sizes {
  int64_t weight;   // of an element that computes
  int64_t compute;  // of master weights, gradients, moments: ops::compute_type of the above
};

Sizes sizes_of(config::Precision precision) {
  switch (precision) {
    case config::Precision::bf16:
    case config::Precision::fp16:
      return {2, 4};
    case config::Precision::fp32:
      return {4, 4};
    case config::Precision::fp64:
      return {8, 8};
  }
  return {8, 8};
}

/// Bytes a token that one block keeps for backward: the inputs of two norms and of four linears, the rotated q, k and
/// v, and the gate and up projections (gpt: the up projection). Attention's output is the input of the output
/// projection, and is kept once. Selective recomputation makes the inputs of three linears again.
int64_t block_bytes_per_token(const describe::ModelShape& shape, const MemoryOptions& options, const Sizes& sizes) {
  const bool selective = options.recompute == config::Recompute::selective;
  const int64_t norms = 2 * shape.hidden, their_linears = selective ? 0 : 2 * shape.hidden;
  const int64_t attention =
      (2 * shape.heads + 2 * shape.kv_heads + (shape.qk_norm ? shape.heads + 2 * shape.kv_heads : 0)) * shape.head_dim;
  const int64_t feed_forward = (shape.is_gpt() ? 1 : 2) * shape.ffn + (selective ? 0 : shape.ffn);
  const int64_t row_statistics =
      shape.heads + (shape.is_gpt() ? 4 : 2) + (shape.qk_norm ? shape.heads + shape.kv_heads : 0);
  // With dropout the weights of attention are written out: scores and softmax in the compute type, weights and dropped
  // weights in the other.
  const int64_t scores = shape.dropout > 0 ? shape.heads * options.seq_len * 2 * (sizes.compute + sizes.weight) : 0;
  return (norms + their_linears + attention + feed_forward) * sizes.weight + row_statistics * sizes.compute + scores;
}

}  // namespace

std::vector<MemoryItem> estimate_memory(const describe::ModelShape& shape, const MemoryOptions& options) {
  const Sizes sizes = sizes_of(options.precision);
  const int64_t parameters = describe::count_parameters(shape).total();
  const int64_t tokens = options.micro_batch_size * options.seq_len;
  const bool recompute = options.recompute == config::Recompute::full;

  std::vector<MemoryItem> items;
  const auto per_parameter = [&](const char* purpose, int64_t bytes) {
    items.push_back({purpose, parameters * bytes, fmt::format("{} bytes a parameter", bytes)});
  };
  per_parameter("weights", sizes.weight);
  if (sizes.weight != sizes.compute) per_parameter("master weights", sizes.compute);
  per_parameter("gradients", sizes.compute);
  per_parameter("moments", 2 * sizes.compute);
  if (options.ema) per_parameter("moving average", sizes.compute);

  const int64_t block = block_bytes_per_token(shape, options, sizes);
  const int64_t border = shape.hidden * sizes.weight;  // between blocks, and after the last
  // Offloaded, the inputs of all blocks but one wait elsewhere.
  const int64_t borders = border * (options.offload ? 2 : shape.layers + 1);
  if (is_lower_bound(shape)) {
    items.push_back(
        {"activations", tokens * borders,
         fmt::format("the inputs of all blocks; what {} keeps inside them is not known", shape.architecture)});
  } else {
    items.push_back({"activations", tokens * (recompute ? borders + block : block * shape.layers + border),
                     !recompute        ? "what all blocks keep for backward"
                     : options.offload ? "one block whole; the inputs of the others wait elsewhere"
                                       : "the inputs of all blocks, and one block whole"});
  }

  if (shape.sliding_window > 0 && shape.sliding_window < options.seq_len)
    items.push_back({"window mask", options.seq_len * options.seq_len * sizes.weight, "sequence x sequence, once"});

  // ops::linear_cross_entropy: the logits of a chunk, and the gradient of its input; in fp16 also the product of a
  // chunk that is added to the head's gradient.
  const int64_t row = shape.vocab * sizes.weight;
  const int64_t rows = describe::loss_rows_per_chunk(tokens, shape.vocab, sizes.weight);
  const int64_t product = options.precision == config::Precision::fp16 ? shape.vocab * shape.hidden * sizes.weight : 0;
  items.push_back({"loss", rows * row + tokens * border + product, fmt::format("logits of {} rows", rows)});
  return items;
}

std::vector<MemoryItem> estimate_memory(const config::Config& config) {
  return estimate_memory(config.model, {.precision = config.train.precision,
                                        .recompute = config.train.recompute,
                                        .micro_batch_size = config.train.micro_batch_size,
                                        .seq_len = config.train.seq_len,
                                        .offload = config.train.activation_offload != config::ActivationOffload::none,
                                        .ema = config.train.ema_decay > 0});
}

bool is_lower_bound(const describe::ModelShape& shape) {
  return describe::registered_architecture(shape.architecture) != nullptr;
}

int64_t total_bytes(std::span<const MemoryItem> items) {
  int64_t total = 0;
  for (const MemoryItem& item : items) total += item.bytes;
  return total;
}

}  // namespace trireme::observe
