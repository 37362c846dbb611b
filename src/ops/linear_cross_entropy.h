// The output projection and the cross-entropy of its logits as one operation, in chunks of rows, so that the logits
// [tokens, vocab] never exist as a whole: at a vocabulary of 50k they would be the largest tensor of the step.
#pragma once

#include "ops/gradient_sink.h"

namespace trireme::ops {

/// Label of a token that does not count.
inline constexpr int64_t kIgnoredLabel = -100;

/// scale * sum over tokens of (-log softmax(hidden W^T)[label] + z_loss * (log sum exp(hidden W^T))^2), a 0-dim double;
/// tokens with a negative label count nothing. hidden [tokens, hidden], weight [vocab, hidden], labels [tokens] int64.
/// The second term keeps logits near zero (Chowdhery et al., "PaLM", section 5); `z_part` receives scale * z_loss * its
/// sum. With `soft_cap` > 0, hidden W^T above is soft_cap * tanh(hidden W^T / soft_cap).
///
/// Where gradients are wanted they are made in the forward pass, while a chunk's logits are at hand: that of hidden is
/// kept until backward, that of the weight goes to its sink at once, and backward only reports it. So a loss whose
/// weight has a sink must not be multiplied afterwards: an incoming gradient other than 1 throws InternalError. Callers
/// pass scale = 1 / (valid tokens of the whole global batch), so that sums over micro-batches and ranks are means.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const Weight& weight, const at::Tensor& labels, double scale,
                                double z_loss = 0, double* z_part = nullptr, double soft_cap = 0);

/// The unscaled loss of each token, without gradient: [tokens], the compute type, 0 for ignored ones.
at::Tensor token_losses(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                        double soft_cap = 0);

/// cap * tanh(logits / cap), which keeps logits within +-cap (Gemma 2, arXiv:2408.00118, section 2); the same where cap
/// is 0. Differentiable.
at::Tensor soft_capped(const at::Tensor& logits, double cap);

namespace reference {
/// From ATen operations, with all logits; differentiable in hidden and weight.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                double scale, double z_loss = 0, double soft_cap = 0);
}  // namespace reference

}  // namespace trireme::ops
