#include "describe/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::describe {
namespace {

double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(scaling.original_max_seq_len);
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// Index of the pair of features that turns `rotations` times within the original context.
double yarn_pair(double rotations, double head_dim, double theta, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_seq_len);
  return head_dim * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

// How far pair `index` is stretched: 0 not at all, 1 in full.
double yarn_ramp(int64_t index, int64_t head_dim, double theta, const RopeScaling& scaling) {
  const auto dim = static_cast<double>(head_dim);
  const double low = std::max(std::floor(yarn_pair(scaling.beta_fast, dim, theta, scaling)), 0.0);
  double high = std::min(std::ceil(yarn_pair(scaling.beta_slow, dim, theta, scaling)), dim - 1);
  if (low == high) high += 0.001;  // as transformers, modeling_rope_utils.py, against division by zero
  return std::clamp((static_cast<double>(index) - low) / (high - low), 0.0, 1.0);
}

}  // namespace

double rotary_theta(int64_t head_dim, double theta, const RopeScaling& scaling) {
  const auto dim = static_cast<double>(head_dim);
  if (!scaling.active() || scaling.type != "ntk" || head_dim <= 2) return theta;
  return theta * std::pow(scaling.factor, dim / (dim - 2));
}

std::vector<double> rotary_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling) {
  const auto dim = static_cast<double>(head_dim);
  const bool active = scaling.active();
  theta = rotary_theta(head_dim, theta, scaling);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / dim);
    if (active && scaling.type == "llama3") frequency = llama3_frequency(frequency, scaling);
    if (active && scaling.type == "linear") frequency /= scaling.factor;
    if (active && scaling.type == "yarn") {
      const double ramp = yarn_ramp(i, head_dim, theta, scaling);
      frequency = frequency / scaling.factor * ramp + frequency * (1 - ramp);
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

double rotary_attention_factor(const RopeScaling& scaling) {
  return scaling.type == "yarn" && scaling.factor > 1 ? 0.1 * std::log(scaling.factor) + 1 : 1;
}

}  // namespace trireme::describe
