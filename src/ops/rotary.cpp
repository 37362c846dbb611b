#include "ops/rotary.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace trireme::ops {
namespace {

double scale_frequency(double frequency, const RotaryScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(scaling.original_max_seq_len);
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

RotaryTable make_rotary_table(int64_t positions, int64_t head_dim, double theta, std::optional<RotaryScaling> scaling,
                              at::ScalarType type, at::Device device) {
  TRIREME_CHECK(head_dim % 2 == 0, "head_dim {}", head_dim);
  const int64_t half = head_dim / 2;
  RotaryTable table{at::empty({positions, half}, at::kDouble), at::empty({positions, half}, at::kDouble)};
  double* cosine = table.cosine.data_ptr<double>();
  double* sine = table.sine.data_ptr<double>();
  for (int64_t i = 0; i < half; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (scaling) frequency = scale_frequency(frequency, *scaling);
    for (int64_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      cosine[position * half + i] = std::cos(angle);
      sine[position * half + i] = std::sin(angle);
    }
  }
  return {table.cosine.to(device, type), table.sine.to(device, type)};
}

}  // namespace trireme::ops
