// Throughput. Catches: evaluation time counted as training, an interval that is not reset, an outlier that moves the
// time left, MFU with a wrong factor.
#include "observe/throughput_meter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace trireme::observe {
namespace {

class ThroughputMeterTest : public testing::Test {
 protected:
  ThroughputMeter make(double rate = 1e6) {
    return ThroughputMeter(
        {.flops_per_token = 100, .matmul_flops_per_second = rate, .total_steps = 100, .now = [this] { return now_; }});
  }
  void step(ThroughputMeter& meter, double seconds, int64_t tokens = 1000) {
    meter.begin_step();
    now_ += seconds;
    meter.end_step(tokens, seconds / 4, seconds / 8);
  }
  double now_ = 1000;
};

TEST_F(ThroughputMeterTest, MeansOfTheInterval) {
  ThroughputMeter meter = make();
  step(meter, 1);
  now_ += 500;  // an evaluation
  step(meter, 3, 3000);
  StepRecord record;
  record.step = 2;
  meter.report(record);
  EXPECT_DOUBLE_EQ(record.tokens_per_second, 1000);  // 4000 tokens in 4 s
  EXPECT_DOUBLE_EQ(record.mfu, 0.1);                 // 1000 x 100 / 1e6
  EXPECT_DOUBLE_EQ(record.step_time_s, 2);
  EXPECT_DOUBLE_EQ(record.data_time_s, 0.5);
  EXPECT_DOUBLE_EQ(record.comm_exposed_s, 0.25);

  step(meter, 0.5);
  record.step = 3;
  meter.report(record);
  EXPECT_DOUBLE_EQ(record.tokens_per_second, 2000) << "the interval before still counts";
  EXPECT_DOUBLE_EQ(record.step_time_s, 0.5);
}

TEST_F(ThroughputMeterTest, TimeLeftIsTheMedianTimesTheSteps) {
  ThroughputMeter meter = make();
  EXPECT_EQ(meter.seconds_left(0), -1);
  step(meter, 60);  // warm-up
  step(meter, 2);
  step(meter, 2);
  step(meter, 30);  // a hiccup
  step(meter, 2);
  EXPECT_DOUBLE_EQ(meter.seconds_left(5), 2 * 95);
  EXPECT_EQ(meter.seconds_left(100), 0);
  EXPECT_EQ(meter.seconds_left(101), 0);
  for (int i = 0; i < 50; ++i) step(meter, 7);
  EXPECT_DOUBLE_EQ(meter.seconds_left(90), 70) << "old steps are forgotten";
}

TEST_F(ThroughputMeterTest, NothingMeasured) {
  ThroughputMeter meter = make(0);
  StepRecord record;
  meter.report(record);
  EXPECT_EQ(record.tokens_per_second, 0);
  EXPECT_EQ(record.step_time_s, 0);
  step(meter, 1);
  meter.report(record);
  EXPECT_TRUE(std::isnan(record.mfu)) << "no rate, no MFU";
  EXPECT_EQ(record.tokens_per_second, 1000);
}

TEST_F(ThroughputMeterTest, EndWithoutBegin) {
  ThroughputMeter meter = make();
  EXPECT_THROW(meter.end_step(1, 0, 0), InternalError);
}

}  // namespace
}  // namespace trireme::observe
