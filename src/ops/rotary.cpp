#include "ops/rotary.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "base/error.h"
#include "describe/rope.h"

namespace trireme::ops {

RotaryTable make_rotary_table(int64_t positions, int64_t head_dim, double theta, const describe::RopeScaling& scaling,
                              at::ScalarType type, at::Device device) {
  TRIREME_CHECK(head_dim % 2 == 0, "head_dim {}", head_dim);
  const int64_t half = head_dim / 2;
  const std::vector<double> frequencies = describe::rotary_frequencies(head_dim, theta, scaling);
  const double factor = describe::rotary_attention_factor(scaling);
  RotaryTable table{at::empty({positions, half}, at::kDouble), at::empty({positions, half}, at::kDouble)};
  double* cosine = table.cosine.data_ptr<double>();
  double* sine = table.sine.data_ptr<double>();
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = frequencies[static_cast<size_t>(i)];
    for (int64_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      cosine[position * half + i] = std::cos(angle) * factor;
      sine[position * half + i] = std::sin(angle) * factor;
    }
  }
  return {table.cosine.to(device, type), table.sine.to(device, type)};
}

}  // namespace trireme::ops
