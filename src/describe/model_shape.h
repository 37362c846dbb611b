// Shapes of models: the numbers that define a decoder, the published ones by name, and what follows from them alone
// (parameters by role, floating-point operations a token).
//
// Nothing here knows of options, tensors or layouts: config/ fills a ModelShape, models/ builds it, reports describe
// it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "describe/rope.h"

namespace trireme::describe {

/// A decoder-only transformer.
/// `llama`: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases; with qkv_bias it is Qwen 2, with
/// qk_norm Qwen 3, with sliding_window Mistral 7B. `gpt`: GPT-2: learned positions, LayerNorm, biases everywhere, GELU
/// by the tanh formula.
struct ModelShape {
  std::string architecture = "llama";
  int64_t layers = 0;       ///< transformer blocks
  int64_t hidden = 0;       ///< width of the residual stream
  int64_t heads = 0;        ///< query heads
  int64_t kv_heads = 0;     ///< key and value heads; divides heads (gpt: equals heads)
  int64_t head_dim = 0;     ///< features a head; even where rotary turns pairs
  int64_t ffn = 0;          ///< width inside the feed-forward layer
  int64_t vocab = 0;        ///< rows of the embedding
  int64_t max_seq_len = 0;  ///< longest sequence the model is made for
  bool tied = false;        ///< the head is the embedding's weight
  double norm_eps = 1e-5;
  double dropout = 0;  ///< of embedding, attention weights, and what is added to the residual stream; in training alone
  int64_t sliding_window = 0;  ///< tokens that attention looks back, itself included; 0: all
  double logit_softcap = 0;    ///< logits are cap * tanh(logits / cap), as in Gemma 2; 0: as they are
  // llama alone
  bool qkv_bias = false;  ///< biases of the q, k and v projections
  bool qk_norm = false;   ///< RMSNorm of every query and key head
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  std::vector<std::string> options;  ///< "name=number", of an added architecture (architecture.h); llama has none

  bool is_gpt() const { return architecture == "gpt"; }
  bool operator==(const ModelShape&) const = default;
};

/// A published or a small model of known shape.
struct Preset {
  std::string_view name;  ///< e.g. "llama3-8b"
  ModelShape shape;
  int64_t parameters = 0;   ///< published or counted total, which the tests hold count_parameters to
  std::string_view source;  ///< where the numbers come from
};

/// All presets, smallest first within each family.
std::span<const Preset> presets();
/// Their names, in that order.
std::vector<std::string> preset_names();
/// The shape of a preset; throws InputError that names the nearest one when there is none of that name.
const Preset& preset(std::string_view name);

/// What keeps the shape from being a model, each fault with its key (`<prefix>kv_heads`), both numbers and what works.
/// Only relations between the numbers are looked at; a number that is not above 0 takes part in none.
std::vector<std::string> shape_faults(const ModelShape& shape, std::string_view prefix = "model.");

/// Numbers of parameters by role. A tied head counts as the embedding and `head` is 0.
struct ParameterCounts {
  int64_t embedding = 0;
  int64_t positions = 0;  ///< learned ones
  int64_t attention = 0;
  int64_t feed_forward = 0;
  int64_t norm = 0;
  int64_t head = 0;
  int64_t other = 0;  ///< all but embedding and head where the roles are not known: of a registered architecture

  int64_t total() const { return embedding + positions + attention + feed_forward + norm + head + other; }
};
ParameterCounts count_parameters(const ModelShape& shape);

/// Tokens that a query sees, on average over a sequence, under a causal mask: i + 1 for token i, at most `window` (0:
/// no window).
double causal_tokens_seen(int64_t seq_len, int64_t window);

/// How attention's two matrix products over the sequence are counted.
enum class AttentionFlops {
  full,    ///< as if every token saw the whole sequence: the convention of published MFU figures
  causal,  ///< only what a causal mask leaves: a token sees (seq_len + 1) / 2 tokens on average
};

/// Floating-point operations of one token in training, forward and backward (2 a multiply-add; backward is twice
/// forward; recomputation is not counted): 6 x (parameters that multiply) + 12 x layers x heads x head_dim x seq_len.
/// Parameters that multiply are all but the tables of tokens and positions, which are only looked up; a tied table
/// counts once, as the head. A sliding window shortens what attention sees. Source: Chowdhery et al., "PaLM", 2022,
/// appendix B, where attention is not halved for causality.
double model_flops_per_token(const ModelShape& shape, int64_t seq_len, AttentionFlops attention = AttentionFlops::full);

/// Rows of logits that the loss works on at a time: as many as fit 64 MiB, at least 256. The head's weight is read, and
/// its gradient read and written, once a chunk: with few rows that is more than the logits themselves.
constexpr int64_t loss_rows_per_chunk(int64_t tokens, int64_t vocab, int64_t element_size) {
  const int64_t fit = (int64_t{64} << 20) / (vocab * element_size > 1 ? vocab * element_size : 1);
  const int64_t least = tokens < 256 ? tokens : 256;
  const int64_t rows = fit < least ? least : fit > tokens ? tokens : fit;
  return rows < 1 ? 1 : rows;
}

}  // namespace trireme::describe
