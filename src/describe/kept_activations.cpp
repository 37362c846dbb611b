#include "describe/kept_activations.h"

#include <algorithm>
#include <cmath>

#include "describe/matmul_plan.h"

namespace trireme::describe {
namespace {

// Numbers a row: LayerNorm has mean and 1 / deviation, RMSNorm the latter.
int64_t norm_statistics(const ModelShape& shape) { return shape.is_gpt() ? 2 : 1; }
// What the activation reads for each number that it makes: SwiGLU gate and up, GELU up.
int64_t activation_inputs(const ModelShape& shape) { return shape.is_gpt() ? 1 : 2; }

// Of a mask with a bit an element.
int64_t mask_bytes(int64_t bits, const KeptOptions& options) {
  const int64_t samples = options.tokens / std::max<int64_t>(options.seq_len, 1);
  return samples * ((bits * options.seq_len + 31) / 32) * 4;
}

}  // namespace

std::vector<KeptTensor> kept_in_block(const ModelShape& shape, int64_t seq_len, ActivationTypes types) {
  const int64_t query = shape.heads * shape.head_dim, key_value = shape.kv_heads * shape.head_dim;
  const int64_t of_norm = norm_statistics(shape);
  std::vector<KeptTensor> kept = {{"attention norm: input", shape.hidden, of_norm},
                                  {"qkv projection: input", shape.hidden, 0, 0, true}};
  if (shape.qk_norm)
    kept.push_back({"norm of queries and keys: input", query + 2 * key_value, shape.heads + shape.kv_heads});
  if (shape.dropout > 0) {
    // From ATen operations, which keep queries and keys in the compute type (turned by tables of their own), softmax in
    // that type, the dropped weights in the other, and values: a copy for each query head, or the product that they are
    // part of.
    const bool rotary = !shape.is_gpt(), copies = rotary || types.element != types.compute;
    const int64_t scores = shape.heads * seq_len;
    kept.push_back({"attention: queries and keys", 0, (copies ? 2 * query : 0) + (rotary ? 2 * shape.head_dim : 0)});
    kept.push_back({"attention: values", shape.kv_heads < shape.heads ? query : query + 2 * key_value});
    kept.push_back({"attention: softmax", 0, scores});
    kept.push_back({"attention: dropped weights", scores});
    kept.push_back({"attention: dropout's mask", 0, 0, scores});
  } else {
    kept.push_back({"attention: queries, keys and values", query + 2 * key_value, shape.heads});
  }
  kept.push_back({"output projection: input", query});
  kept.push_back({"feed-forward norm: input", shape.hidden, of_norm});
  kept.push_back({"up projection: input", shape.hidden, 0, 0, true});
  kept.push_back({"activation: input", activation_inputs(shape) * shape.ffn});
  kept.push_back({"down projection: input", shape.ffn, 0, 0, true});
  if (shape.dropout > 0) {
    kept.push_back({"output projection: dropout's mask", 0, 0, shape.hidden});
    kept.push_back({"down projection: dropout's mask", 0, 0, shape.hidden});
  }
  return kept;
}

int64_t recompute_group(int64_t layers, int64_t setting) {
  if (setting > 0) return std::min(setting, std::max<int64_t>(layers, 1));
  return std::max<int64_t>(1, std::llround(std::ceil(std::sqrt(static_cast<double>(layers)))));
}

KeptBytes kept_activations(const ModelShape& shape, const KeptOptions& options) {
  int64_t block = 0, masks = 0;  // a token; of all tokens
  for (const KeptTensor& tensor : kept_in_block(shape, options.seq_len, options.types)) {
    if (tensor.made_again && options.recompute == Recompute::selective) continue;
    block += tensor.elements * options.types.element + tensor.statistics * options.types.compute;
    masks += mask_bytes(tensor.bits, options);
  }
  const int64_t embedding = shape.dropout > 0 ? mask_bytes(shape.hidden, options) : 0;
  const int64_t border = shape.hidden * options.types.element;  // between blocks
  // The final norm's input and statistics, which its backward frees.
  const int64_t last = border + norm_statistics(shape) * options.types.compute;
  // At the activation of a feed-forward layer: its own gradients, and that of the residual stream beside it. The down
  // projection has freed its input.
  const int64_t inner = shape.ffn * options.types.element;
  const int64_t freed = options.recompute == Recompute::selective ? 0 : inner;
  KeptBytes kept;
  const int64_t whole = std::min(options.group, shape.layers);
  if (options.recompute != Recompute::full) {
    kept.after_forward = options.tokens * (block * shape.layers + last) + masks * shape.layers + embedding;
    kept.in_backward = options.tokens * block * shape.layers + masks * shape.layers + embedding;
  } else {
    const int64_t groups = (shape.layers + options.group - 1) / options.group, inputs = options.offload ? 0 : groups;
    kept.after_forward = options.tokens * (border * inputs + last) + embedding;
    // A group's own input stands among `inputs` and among what its first block keeps; its output is there as well.
    kept.in_backward = options.tokens * (border * std::max<int64_t>(inputs - 1, 0) + block * whole + border) +
                       masks * whole + embedding;
  }
  // At the down projection's own gradients its input is there, again under selective recomputation, and scratch; then
  // at the activation its gradients.
  int64_t scratch = 0;
  if (options.product_threads > 0)
    scratch = backward_scratch_bytes({options.tokens, shape.ffn, shape.hidden}, options.product_threads);
  const int64_t again = inner - freed;
  const int64_t at_projection = options.tokens * (border + inner + again) + scratch;
  const int64_t at_activation = options.tokens * (border + (1 + activation_inputs(shape)) * inner);
  if (scratch > 0 && at_projection > at_activation - options.tokens * freed) {
    kept.workspace = at_projection;
  } else {
    kept.in_backward -= options.tokens * freed;
    kept.workspace = at_activation;
  }
  return kept;
}

}  // namespace trireme::describe
