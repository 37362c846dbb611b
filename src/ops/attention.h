// Causal self-attention with grouped queries (Ainslie et al., arXiv:2305.13245), on the fused output of the q, k, v
// projection; with rotary positions, a sliding window and documents that do not see each other where they are asked
// for.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <vector>

#include "ops/dropout.h"
#include "ops/rotary.h"

namespace trireme::ops {

struct AttentionShape {
  int64_t heads, kv_heads, head_dim;
};

/// Consecutive tokens of a row that see no others: a document, or what a row holds of it.
struct Segment {
  int64_t row, first, length;
};

/// What a query sees of the tokens up to itself.
struct AttentionMask {
  int64_t window = 0;  ///< the last so many, itself included (Beltagy et al., arXiv:2004.05150); 0: all
  /// Every token of the batch once, by row and position; null: each row is one segment.
  std::shared_ptr<const std::vector<Segment>> segments;
  /// Room for what a window adds to the scores of a piece, so that it is made once and not in every call; may be null.
  std::shared_ptr<at::Tensor> added;
};

/// qkv [batch, seq, (heads + 2*kv_heads) * head_dim]: all query heads, then the key heads, then the value heads.
/// positions [batch * seq] int64: row of the rotary table of each token; a table without tensors does not rotate.
/// Result [batch, seq, heads * head_dim].
///
/// Consumes qkv: its memory is rotated in place and kept for backward, so the caller must not read it again.
at::Tensor causal_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions, const AttentionMask& mask = {});

/// The same with dropout of the attention weights, for which the score matrix is written out: memory grows with the
/// square of the sequence. An inactive dropout is causal_attention().
at::Tensor causal_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions, const AttentionMask& mask, const Dropout& dropout,
                            std::string_view place);

/// Keys and values of the tokens so far, for generation: [batch, kv_heads, capacity, head_dim] each.
struct KeyValueCache {
  at::Tensor keys, values;
  int64_t length = 0;
};

/// The same without gradient for the next `seq` tokens after those in the cache, which grows by them. `window` as in
/// AttentionMask.
at::Tensor cached_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions, KeyValueCache& cache, int64_t window = 0);

namespace reference {
/// From ATen operations with the score matrix written out; differentiable by autograd in qkv, which it leaves alone.
at::Tensor causal_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions, const AttentionMask& mask = {}, const Dropout& dropout = {},
                            std::string_view place = {});
}  // namespace reference

}  // namespace trireme::ops
