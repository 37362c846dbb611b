// Causal attention of bf16 on the CPU in tiles of 64 queries by 64 keys, as FlashAttention-2 orders them (Dao,
// arXiv:2307.08691, algorithms 1 and 2), with matrix products on small packed tiles.
//
// Against ATen's flash kernel for the CPU: tiles that a causal mask, a window or the border of a document hides are not
// computed; keys and values of grouped queries are not repeated; gradients go straight into the fused row; and the
// small products are called without a oneDNN primitive around each, which took a third of ATen's backward pass at short
// sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "ops/attention.h"

namespace trireme::ops {

/// A part of the batch whose tokens see only each other: rows [row, row + rows), tokens [first, first + length) of
/// each.
struct Piece {
  int64_t row, rows, first, length;
};

/// Whether these operands are for attention_tiles(): bf16 on a CPU with AMX's layout of products, head_dim up to 256.
bool tiles_apply(const at::Tensor& qkv, const AttentionShape& shape);

/// qkv [batch, seq, (heads + 2*kv_heads) * head_dim], rotated; out [batch, seq, heads * head_dim]; logsumexp [batch,
/// heads, seq] float. Every token is in one piece. window: tokens that a query looks back, itself included; 0: all.
void attention_tiles(const at::Tensor& qkv, const AttentionShape& shape, std::span<const Piece> pieces, int64_t window,
                     const at::Tensor& out, const at::Tensor& logsumexp);

/// dqkv, of the rotated qkv, from dout and what the forward pass read and wrote.
void attention_tiles_backward(const at::Tensor& dout, const at::Tensor& qkv, const AttentionShape& shape,
                              std::span<const Piece> pieces, int64_t window, const at::Tensor& out,
                              const at::Tensor& logsumexp, const at::Tensor& dqkv);

}  // namespace trireme::ops
