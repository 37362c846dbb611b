// Normalisation over the last dimension, with the residual addition before it: root mean square (Zhang and Sennrich,
// arXiv:1910.07467) and layer normalisation (Ba, Kiros and Hinton, arXiv:1607.06450).
#pragma once

#include <tuple>

#include "ops/gradient_sink.h"

namespace trireme::ops {

/// y = x / sqrt(mean(x^2) + eps) * weight. x [.., hidden], weight [hidden]. Saves x and one number a row.
at::Tensor rms_norm(const at::Tensor& x, const Weight& weight, double eps);

/// (h, y) with h = x + delta and y = rms_norm(h): one pass over memory instead of two.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight,
                                                double eps);

/// y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, the variance without Bessel's correction. Saves x and
/// two numbers a row.
at::Tensor layer_norm(const at::Tensor& x, const Weight& weight, const Weight& bias, double eps);

/// (h, y) with h = x + delta and y = layer_norm(h).
std::tuple<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight,
                                                  const Weight& bias, double eps);

/// RMSNorm of each query head with `q_weight` and of each key head with `k_weight` [head_dim], on the fused projection
/// qkv [.., (heads + 2*kv_heads) * head_dim]; values pass (Qwen 3; Henry et al., arXiv:2010.04245).
at::Tensor qk_norm(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, const Weight& q_weight,
                   const Weight& k_weight, double eps);

namespace reference {
/// The same from ATen operations, differentiable by autograd in x and weights.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);
at::Tensor qk_norm(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, const at::Tensor& q_weight,
                   const at::Tensor& k_weight, double eps);
}  // namespace reference

}  // namespace trireme::ops
