// Catches: a flag that is not set, or that threads started later do not have.
#include "base/subnormal.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

namespace trireme {
namespace {

float half_of_the_smallest() {
  volatile float smallest = std::numeric_limits<float>::min();
  return smallest * 0.5f;
}

TEST(Subnormal, AreZeroInThisThreadAndThoseAfterIt) {
  float before = 0, within = 1, later = 1, others = 0;
  std::thread([&] {
    before = half_of_the_smallest();
    flush_subnormals();
    within = half_of_the_smallest();
    std::thread([&] { later = half_of_the_smallest(); }).join();
  }).join();
  others = half_of_the_smallest();
  EXPECT_GT(before, 0.0f);
  EXPECT_EQ(within, 0.0f);
  EXPECT_EQ(later, 0.0f);
  EXPECT_GT(others, 0.0f);
}

}  // namespace
}  // namespace trireme
