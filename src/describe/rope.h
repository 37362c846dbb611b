// Rotary frequencies (Su et al., arXiv:2104.09864) and the ways to stretch them for contexts longer than a model was
// trained on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::describe {

/// A way to stretch rotary frequencies; names are those of transformers' rope_scaling.
///
/// `llama3` (meta-llama/llama-models, models/llama3/model.py, apply_scaling): wavelengths longer than
///   original_max_seq_len / low_freq_factor are divided by `factor`, those shorter than original_max_seq_len /
///   high_freq_factor stay, those between are interpolated.
/// `linear` (Chen et al., arXiv:2306.15595): all frequencies are divided by `factor`.
/// `ntk` (NTK-aware scaling; bloc97, 2023; Peng et al., arXiv:2309.00071, section 3.1): theta becomes
///   theta * factor^(d / (d - 2)), so that the lowest frequency is divided by `factor` and the highest stays.
/// `yarn` (Peng et al., section 3.2 to 3.4): features that turn more than beta_fast times within original_max_seq_len
///   stay, those that turn less than beta_slow times are divided by `factor`, a ramp between; cos and sin are
///   multiplied by 0.1 ln(factor) + 1, which sharpens the attention.
struct RopeScaling {
  std::string type = "llama3";
  double factor = 1.0;  ///< 1: frequencies stay as they are
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int64_t original_max_seq_len = 8192;

  bool active() const { return factor != 1.0; }
  bool operator==(const RopeScaling&) const = default;
};

/// The base of the frequencies: `theta`, or with ntk a larger one that stretches them all by itself.
double rotary_theta(int64_t head_dim, double theta, const RopeScaling& scaling);

/// Angle that one position turns each pair of features by: [head_dim / 2], radians.
std::vector<double> rotary_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling);

/// What cos and sin are multiplied by; 1 but for yarn.
double rotary_attention_factor(const RopeScaling& scaling);

}  // namespace trireme::describe
