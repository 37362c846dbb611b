// The measured rate. Catches: a rate with a wrong factor, a measurement that takes too long, a barrier that is not met
// twice, random state that is touched.
#include "observe/matmul_rate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>

namespace trireme::observe {
namespace {

TEST(MatmulRate, EachDtype) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    int calls = 0;
    const auto start = std::chrono::steady_clock::now();
    const MatmulRate rate =
        measure_matmul_rate(dtype, {.size = 512, .seconds = 0.1, .together = [&calls] { ++calls; }, .clock = {}});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(calls, 2) << dtype;
    EXPECT_GT(rate.flops_per_second, 1e7) << dtype;
    EXPECT_GE(rate.repetitions, 3) << dtype;
    // The best stretch is at least as fast as all that was done in all that time.
    const double flops = 2.0 * static_cast<double>(rate.size * rate.size * rate.size * rate.repetitions);
    EXPECT_GE(rate.flops_per_second, flops / took.count()) << dtype;
  }
}

TEST(MatmulRate, HasTheRightFactor) {
  // A clock that goes on by 10 ms at each look: a stretch of 50 ms is then 5 products, and takes 10 ms.
  double time = 0;
  const MatmulRate rate = measure_matmul_rate(
      at::kFloat, {.size = 64, .seconds = 0.3, .together = {}, .clock = [&time] { return time += 0.01; }});
  EXPECT_EQ(rate.size, 64);
  EXPECT_NEAR(rate.flops_per_second, 2.0 * 64 * 64 * 64 * 5 / 0.01, 1);
  EXPECT_GE(rate.repetitions, 3 * 5);
}

TEST(MatmulRate, ASizeThatIsTooLargeIsHalved) {
  const MatmulRate rate =
      measure_matmul_rate(at::kDouble, {.size = 1024, .seconds = 0.001, .together = {}, .clock = {}});
  EXPECT_EQ(rate.size, 256);
}

TEST(MatmulRate, LeavesRandomNumbersAlone) {
  at::manual_seed(1);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(1);
  measure_matmul_rate(at::kFloat, {.size = 256, .seconds = 0.001, .together = {}, .clock = {}});
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

}  // namespace
}  // namespace trireme::observe
