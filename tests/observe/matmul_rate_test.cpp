// The measured rate. Catches: a rate with a wrong factor, a measurement that takes too long, a barrier that is not met
// twice, random state that is touched.
#include "observe/matmul_rate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace trireme::observe {
namespace {

TEST(MatmulRate, EachDtype) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    int calls = 0;
    const auto start = std::chrono::steady_clock::now();
    const MatmulRate rate =
        measure_matmul_rate(dtype, {.size = 512, .seconds = 0.1, .together = [&calls] { ++calls; }});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(calls, 2) << dtype;
    EXPECT_GT(rate.flops_per_second, 1e7) << dtype;
    EXPECT_GE(rate.repetitions, 3) << dtype;
    // The best stretch is at least as fast as all that was done in all that time.
    const double flops = 2.0 * static_cast<double>(rate.size * rate.size * rate.size * rate.repetitions);
    EXPECT_GE(rate.flops_per_second, flops / took.count()) << dtype;
  }
}

// Against a measurement of its own, in turns, so that both see the same machine; the best of each.
TEST(MatmulRate, HasTheRightFactor) {
  constexpr int64_t n = 512;
  const at::Tensor a = at::rand({n, n}), b = at::rand({n, n});
  at::Tensor c = at::empty({n, n});
  double ours = 0, plain = 0;
  for (int turn = 0; turn < 5; ++turn) {
    ours =
        std::max(ours, measure_matmul_rate(at::kFloat, {.size = n, .seconds = 0.05, .together = {}}).flops_per_second);
    for (int i = 0; i < 10; ++i) {
      const auto start = std::chrono::steady_clock::now();
      at::mm_out(c, a, b);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      plain = std::max(plain, 2.0 * n * n * n / took.count());
    }
  }
  EXPECT_GT(ours / plain, 0.6);
  EXPECT_LT(ours / plain, 1.6);
}

TEST(MatmulRate, ASizeThatIsTooLargeIsHalved) {
  const MatmulRate rate = measure_matmul_rate(at::kDouble, {.size = 1024, .seconds = 0.001, .together = {}});
  EXPECT_EQ(rate.size, 256);
}

TEST(MatmulRate, LeavesRandomNumbersAlone) {
  at::manual_seed(1);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(1);
  measure_matmul_rate(at::kFloat, {.size = 256, .seconds = 0.001, .together = {}});
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

}  // namespace
}  // namespace trireme::observe
