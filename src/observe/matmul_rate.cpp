#include "observe/matmul_rate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "ops/matmul.h"

namespace trireme::observe {
namespace {

constexpr int64_t kSmallest = 256;  // below this a product is overhead
/// One measured stretch holds as many products as take this long. It spans many of the scheduler's time slices, so that
/// the best stretch of a worker that shares a core is not one in which it happened to run alone.
constexpr double kStretch_s = 0.05;
constexpr int kFewestStretches = 3;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Small exact numbers of a fixed pattern: no random generator is touched, and nothing is larger than the result.
at::Tensor matrix(int64_t size, at::ScalarType dtype) {
  const at::Tensor result = at::empty({size, size}, dtype);
  for (int64_t row = 0; row < size; ++row)
    result[row].copy_(at::arange(row * size, (row + 1) * size, at::kLong).remainder(17).sub(8).div(8));
  return result;
}

struct Product {
  at::Tensor a, b, c;
  Product(int64_t size, at::ScalarType dtype)
      : a(matrix(size, dtype)), b(matrix(size, dtype)), c(at::empty({size, size}, a.options())) {}
  /// Seconds of `count` products.
  double run(int64_t count, const std::function<double()>& clock) {
    const double start = clock();
    for (int64_t i = 0; i < count; ++i) ops::product_into(c, a, b);
    return clock() - start;
  }
};

}  // namespace

MatmulRate measure_matmul_rate(at::ScalarType dtype, const MatmulRateOptions& options) {
  TRIREME_CHECK(options.size > 0 && options.seconds > 0, "size {}, seconds {}", options.size, options.seconds);
  const at::NoGradGuard no_grad;
  const std::function<double()> clock = options.clock ? options.clock : steady_seconds;
  int64_t size = options.size;
  Product product(size, dtype);
  double once = product.run(1, clock);  // with page faults and kernels that are generated on first use: an upper bound
  while (once > options.seconds / 3 && size / 2 >= kSmallest) {
    size /= 2;
    product = Product(size, dtype);
    once = product.run(1, clock);
  }
  once = std::max(product.run(1, clock), 1e-9);
  const auto count = std::max<int64_t>(1, std::llround(std::ceil(kStretch_s / once)));

  if (options.together) options.together();
  const double start = clock();
  double best = 0, last = 0;
  int64_t stretches = 0;
  // No stretch begins that would end after the time, when other workers have stopped already.
  while (stretches < kFewestStretches || clock() - start + last <= options.seconds) {
    last = product.run(count, clock);
    best = stretches == 0 ? last : std::min(best, last);
    ++stretches;
  }
  if (options.together) options.together();

  MatmulRate rate;
  rate.flops_per_second = 2.0 * std::pow(static_cast<double>(size), 3) * static_cast<double>(count) / best;
  rate.size = size;
  rate.repetitions = stretches * count;
  return rate;
}

void repeat_products(at::ScalarType dtype, int64_t size, const std::function<void(double)>& told) {
  const at::NoGradGuard no_grad;
  Product product(size, dtype);
  while (true) told(product.run(1, steady_seconds));
}

}  // namespace trireme::observe
