// Root mean square normalisation (Zhang and Sennrich, arXiv:1910.07467), with the residual addition before it.
#pragma once

#include <tuple>

#include "ops/gradient_sink.h"

namespace trireme::ops {

/// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension. x [.., hidden], weight [hidden]. Saves x and one
/// number a row.
at::Tensor rms_norm(const at::Tensor& x, const Weight& weight, double eps);

/// (h, y) with h = x + delta and y = rms_norm(h): one pass over memory instead of two.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight,
                                                double eps);

namespace reference {
/// The same from ATen operations, differentiable by autograd in x and weight.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
}  // namespace reference

}  // namespace trireme::ops
