// Rotary position embedding (Su et al., arXiv:2104.09864) with the frequency scaling of Llama 3.1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace trireme::ops {

/// Llama 3.1's scaling (transformers, modeling_rope_utils.py, _compute_llama3_parameters): wavelengths longer than
/// original_max_seq_len / low_freq_factor are stretched by `factor`, those shorter than original_max_seq_len /
/// high_freq_factor stay, and between them the two are blended.
struct RotaryScaling {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_seq_len = 8192;
};

/// Tables of cos and sin of position * frequency.
struct RotaryTable {
  at::Tensor cosine, sine;  ///< [positions, head_dim / 2], in the compute type of the activations
};

/// Angles are computed in double and rounded once.
RotaryTable make_rotary_table(int64_t positions, int64_t head_dim, double theta, std::optional<RotaryScaling> scaling,
                              at::ScalarType type, at::Device device);

}  // namespace trireme::ops
