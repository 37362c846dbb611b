// One AdamW update in one pass over memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::ops {

struct AdamwStep {
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;           ///< number of this update, from 1: bias correction
  double gradient_scale;  ///< the clip coefficient
};

/// AdamW (Loshchilov and Hutter, arXiv:1711.05101) as torch.optim.AdamW computes it. weight, exp_avg and exp_avg_sq
/// in the compute type and contiguous; gradient as well, or in bf16; `copy` (may be undefined) receives the new weight
/// in the activations' type.
void adamw(const at::Tensor& weight, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
           const at::Tensor& gradient, const at::Tensor& copy, const AdamwStep& step);

namespace reference {
void adamw(const at::Tensor& weight, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
           const at::Tensor& gradient, const at::Tensor& copy, const AdamwStep& step);
}  // namespace reference

}  // namespace trireme::ops
