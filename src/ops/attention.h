// Causal self-attention with rotary positions and grouped queries (Ainslie et al., arXiv:2305.13245), on the fused
// output of the q, k, v projection.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/rotary.h"

namespace trireme::ops {

struct AttentionShape {
  int64_t heads, kv_heads, head_dim;
};

/// qkv [batch, seq, (heads + 2*kv_heads) * head_dim]: all query heads, then the key heads, then the value heads.
/// positions [batch * seq] int64: row of the rotary table of each token. Result [batch, seq, heads * head_dim].
///
/// Consumes qkv: its memory is rotated in place and kept for backward, so the caller must not read it again.
at::Tensor causal_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions);

/// Keys and values of the tokens so far, for generation: [batch, kv_heads, capacity, head_dim] each.
struct KeyValueCache {
  at::Tensor keys, values;
  int64_t length = 0;
};

/// The same without gradient for the next `seq` tokens after those in the cache, which grows by them.
at::Tensor cached_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions, KeyValueCache& cache);

namespace reference {
/// From ATen operations with the score matrix written out; differentiable by autograd in qkv, which it leaves alone.
at::Tensor causal_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions);
}  // namespace reference

}  // namespace trireme::ops
