// The sum of two activations: what a block adds to the residual stream.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::ops {

/// x + delta, of one shape; differentiable by autograd. An operation of its own so that a profile shows it by name.
at::Tensor add(const at::Tensor& x, const at::Tensor& delta);

}  // namespace trireme::ops
