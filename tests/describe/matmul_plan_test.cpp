// Pieces of a product: whole panels that cover it, scratch that stays small, tasks for every thread.
#include "describe/matmul_plan.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

namespace trireme::describe {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(MatmulPlan, CoversTheProductInWholePanels) {
  for (const int64_t m : {1, 31, 33, 640, 4096, 50304})
    for (const int64_t n : {1, 32, 100, 768, 8192, 128256})
      for (const int64_t k : {1, 33, 1024, 1025, 4096, 50257})
        for (const bool out_is_float : {false, true}) {
          SCOPED_TRACE(fmt::format("{} x {} x {} {}", m, n, k, out_is_float));
          const MatmulPlan plan(m, n, k, out_is_float, 2);
          EXPECT_EQ(plan.shared, std::min(m, n));
          EXPECT_EQ(plan.own, std::max(m, n));
          for (const int64_t size : {plan.step, plan.chunk, plan.block, plan.stretch})
            EXPECT_TRUE(size > 0 && size % MatmulPlan::kPanel == 0) << size;
          EXPECT_TRUE(plan.step * plan.steps >= k && plan.step * (plan.steps - 1) < k);
          EXPECT_TRUE(plan.round >= 1 && plan.round <= plan.steps);
          EXPECT_LT(plan.chunk, plan.shared + MatmulPlan::kPanel);
          EXPECT_LT(plan.block, plan.own + MatmulPlan::kPanel);
          EXPECT_LE(plan.stretch, plan.chunk);
          // Of floats, sums are in the result.
          EXPECT_EQ(plan.sums_size > 0, !out_is_float && plan.steps > 1);
        }
}

TEST(MatmulPlan, ScratchStaysSmall) {
  for (const int64_t m : {640, 4096, 16384})
    for (const int64_t n : {768, 4096, 28672, 128256})
      for (const int64_t k : {768, 4096, 16384, 16416, 28672, 50304}) {
        SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, k));
        const MatmulPlan narrow(m, n, k, false, 2);
        EXPECT_LE(MatmulPlan(m, n, k, true, 2).scratch_bytes(2), 10 * kMiB);
        // Over a long sum, sums of a chunk are kept from round to round.
        EXPECT_LE(narrow.scratch_bytes(2), narrow.keeps_sums ? 18 * kMiB + narrow.own * 256 * 4 : 12 * kMiB);
      }
  EXPECT_TRUE(MatmulPlan(667, 768, 50304, false, 2).keeps_sums);
  EXPECT_LE(scratch_bytes({667, 768, 50304}, 2), 12 * kMiB);
}

TEST(MatmulPlan, HasTasksForAllThreads) {
  for (const int64_t threads : {1, 2, 16, 64}) {
    EXPECT_GE(MatmulPlan(4096, 4096, 1024, false, threads).tasks(), 4 * threads);
    EXPECT_GE(MatmulPlan(2048, 384, 384, false, 2).tasks(), 8);
  }
}

}  // namespace
}  // namespace trireme::describe
