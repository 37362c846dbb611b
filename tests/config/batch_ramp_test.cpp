// The ramp against Megatron-LM's rule worked by hand, and what is refused.
#include "config/batch_ramp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::config {
namespace {

using testing::HasSubstr;

Config with(int64_t start, int64_t increment, int64_t samples, int64_t global) {
  Config config;
  config.batch_ramp = {start, increment, samples};
  config.train.global_batch_size = global;
  config.train.micro_batch_size = 2;
  return config;
}

TEST(BatchRamp, GrowsInEqualStretches) {
  // 16 to 64 by 16 over 300 sequences: a stretch is 100.
  const Config config = with(16, 16, 300, 64);
  const struct {
    int64_t seen, size;
  } rows[] = {{0, 16}, {96, 16}, {99, 16}, {100, 32}, {199, 32}, {200, 48}, {299, 48}, {300, 64}, {1000000, 64}};
  for (const auto& row : rows) EXPECT_EQ(batch_size_at(config, row.seen), row.size) << row.seen;
  EXPECT_EQ(batch_size_at(with(0, 0, 0, 64), 5), 64) << "no ramp";
  EXPECT_EQ(batch_size_at(with(64, 16, 300, 64), 5), 64) << "nothing to grow";
}

TEST(BatchRamp, SequencesOfARunAreThoseOfItsSteps) {
  const Config config = with(16, 16, 300, 64);
  int64_t seen = 0;
  for (int64_t steps = 0; steps < 40; ++steps) {
    EXPECT_EQ(sequences_of(config, steps), seen) << steps;
    seen += batch_size_at(config, seen);
  }
  EXPECT_EQ(sequences_of(with(0, 0, 0, 64), 1000000000), 64000000000);
}

TEST(BatchRamp, EverySizeIsCutIntoMicroBatchesOnEveryRank) {
  Config good = with(8, 4, 100, 16);
  EXPECT_EQ(resolve_world(good, 2), 4);
  Config config = with(6, 10, 100, 16);
  try {
    resolve_world(config, 4);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("batch_ramp.start = 6 is not a multiple of train.micro_batch_size x data ranks = 2 x 4; 8 is"));
    EXPECT_THAT(error.what(), HasSubstr("batch_ramp.increment = 10"));
  }
}

}  // namespace
}  // namespace trireme::config
