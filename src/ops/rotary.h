// Rotary position embedding (Su et al., arXiv:2104.09864) with the scalings of describe/rope.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "describe/model_shape.h"

namespace trireme::ops {

/// Tables of cos and sin of position * frequency.
struct RotaryTable {
  at::Tensor cosine, sine;  ///< [positions, head_dim / 2], in the compute type of the activations
  bool active() const { return cosine.defined(); }
};

/// Angles are computed in double and rounded once; cos and sin are multiplied by the scaling's attention factor.
RotaryTable make_rotary_table(int64_t positions, int64_t head_dim, double theta, const describe::RopeScaling& scaling,
                              at::ScalarType type, at::Device device);

/// Turns the first `heads` heads of every token of x [.., width], in place; what is after them stays. positions
/// [tokens] int64: the table's row of each. `inverse` turns back, which is the gradient. For tensors on the CPU.
void rotate(const at::Tensor& x, int64_t heads, int64_t head_dim, const RotaryTable& rotary,
            const at::Tensor& positions, bool inverse);

}  // namespace trireme::ops
