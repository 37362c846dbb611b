#include "ops/rotary.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "base/error.h"
#include "describe/rope.h"
#include "ops/dispatch.h"
#include "ops/work.h"

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

void rotate(const at::Tensor& x, int64_t heads, int64_t head_dim, const RotaryTable& rotary,
            const at::Tensor& positions, bool inverse) {
  const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  const profile::Scope scope(inverse ? profile::Phase::backward : profile::Phase::forward, "rotary", [&] {
    return pass_work({}, rows * heads * head_dim, heads * head_dim,
                     2.0 * static_cast<double>(rows * heads * head_dim * x.element_size()));
  });
  TRIREME_CHECK(positions.numel() == rows, "{} positions for {} tokens", positions.numel(), rows);
  dispatch(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    T* values = data<T>(x);
    const C *cosine = data<C>(rotary.cosine), *sine = data<C>(rotary.sine);
    const int64_t* position = data<int64_t>(positions);
    parallel_rows(rows, width, [&](int64_t begin, int64_t end) {
      kernels<T>().rotate(end - begin, width, heads, head_dim, values + begin * width, cosine, sine, position + begin,
                          inverse);
    });
  });
}

}  // namespace trireme::ops
