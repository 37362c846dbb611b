#include "observe/memory_bandwidth.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace trireme::observe {

double measure_memory_bandwidth(double seconds, int64_t array_bytes) {
  const int64_t count = array_bytes / static_cast<int64_t>(sizeof(float));
  const at::Tensor a = at::zeros({count}, at::kFloat), b = at::ones({count}, at::kFloat),
                   c = at::ones({count}, at::kFloat);
  float* to = a.mutable_data_ptr<float>();
  const float *left = b.const_data_ptr<float>(), *right = c.const_data_ptr<float>();
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto since = [](Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); };
  double best = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < 3 || since(start) < seconds; ++pass) {
    const auto begin = Clock::now();
    at::parallel_for(0, count, 1 << 14, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) to[i] = left[i] + 3.0F * right[i];
    });
    best = std::min(best, since(begin));
  }
  return 3.0 * static_cast<double>(count) * sizeof(float) / best;
}

}  // namespace trireme::observe
