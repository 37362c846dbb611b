// Every operation of a block and of the head, as one rank runs it for one micro-batch: the shape of each matrix
// product, the bytes that element-wise passes move, and what is kept for backward.
//
// Kept bytes follow Korthikanti et al., arXiv:2205.05198, section 4.1: for GPT-2's block with dropout they add up to
// its s b h (10 + 24 / t + 5 a s / (h t)), and with sequence parallelism to s b h / t (34 + 5 a s / h).
#pragma once

#include <string_view>
#include <vector>

#include "plan/job.h"

namespace trireme::plan {

enum class OpKind {
  product,    ///< of activations and a weight: backward makes two more, for the input and for the weight
  attention,  ///< of two activations: backward makes two more
  flash,      ///< fused attention: backward makes the scores again, 2.5 times the work of forward
  pass,       ///< element-wise: bounded by memory
};

struct Op {
  std::string_view name;
  OpKind kind = OpKind::pass;
  double m = 0, n = 0, k = 0;  ///< [m, k] x [k, n]
  double batch = 1;            ///< products of this shape
  double flops = 0;            ///< forward; 2 a multiply-add
  double forward_bytes = 0;    ///< of a pass
  double backward_bytes = 0;   ///< of a pass
  double kernels = 1;          ///< started forward
  double saved = 0;            ///< bytes kept for backward
  bool core = false;           ///< in the core of attention: Selective::core makes it again
  bool cheap = false;          ///< a norm or an activation, or the product that keeps the output of one
  double weight = 0;           ///< elements of the weight on this rank
};

/// A block; `experts`: with the mixture in place of the dense feed-forward layer.
std::vector<Op> block_operations(const Job& job, const Layout& layout, bool experts);
/// The last norm, the logits and the loss.
std::vector<Op> head_operations(const Job& job, const Layout& layout);
std::vector<Op> embedding_operations(const Job& job, const Layout& layout);

/// Tokens of a micro-batch on a rank.
double rank_tokens(const Job& job, const Layout& layout);
/// Rows of logits at a time.
double loss_rows(const Job& job, const Layout& layout);

/// Tokens that a token attends to, on average: half the sequence for fused causal attention, a window where there is
/// one; with scores written out, all.
double tokens_seen(const Job& job);

struct OpTotals {
  double flops = 0;    ///< forward
  double saved = 0;    ///< bytes
  double weights = 0;  ///< elements
};
OpTotals total(const std::vector<Op>& operations);

/// Bytes a block keeps under the layout's recomputation.
double kept_bytes(const Job& job, const Layout& layout, const std::vector<Op>& block);

/// What backward runs again, forward: nothing, all, or by job.selective. Of Selective::products every product is half
/// as large, since every second one is kept.
std::vector<Op> repeated(const Job& job, const Layout& layout, const std::vector<Op>& block);

}  // namespace trireme::plan
