// The loss scale of fp16 against torch.amp.GradScaler's rule, told in its documentation; and which norms are a spike.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/loss_scaler.h"
#include "optim/spike_guard.h"

namespace trireme::optim {
namespace {

TEST(LossScaler, GrowsAfterSoundStepsAndFallsAtOnce) {
  LossScaler scaler({.initial = 1024, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 3},
                    config::Precision::fp16);
  const struct {
    bool finite;
    double scale;
  } rows[] = {{true, 1024}, {true, 1024}, {true, 2048}, {true, 2048},  {true, 2048}, {false, 1024},
              {true, 1024}, {true, 1024}, {true, 2048}, {false, 1024}, {false, 512}};
  int step = 0;
  for (const auto& row : rows) {
    scaler.update(row.finite);
    EXPECT_EQ(scaler.scale(), row.scale) << "step " << ++step;
  }
}

TEST(LossScaler, HasAFloorAndACeiling) {
  LossScaler scaler({.initial = 4, .growth_factor = 1024, .backoff_factor = 0.5, .growth_interval = 1},
                    config::Precision::fp16);
  for (int i = 0; i < 5; ++i) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 1);
  for (int i = 0; i < 50; ++i) scaler.update(true);
  EXPECT_TRUE(std::isfinite(static_cast<float>(scaler.scale())));
}

TEST(LossScaler, OtherPrecisionsAreNotScaled) {
  for (const auto precision : {config::Precision::bf16, config::Precision::fp32, config::Precision::fp64}) {
    LossScaler scaler({}, precision);
    scaler.update(false);
    EXPECT_EQ(scaler.scale(), 1);
    EXPECT_FALSE(scaler.active());
  }
}

TEST(LossScaler, StateGoesOnWhereItWas) {
  LossScaler a({.growth_interval = 4}, config::Precision::fp16), b({.growth_interval = 4}, config::Precision::fp16);
  for (const bool finite : {true, false, true, true, true}) a.update(finite);
  b.set_state(a.state());
  a.update(true);
  b.update(true);
  EXPECT_EQ(a.state(), b.state());
  EXPECT_EQ(b.scale(), 65536) << "halved once, grown once: three sound steps were remembered";
}

TEST(SpikeGuard, ComparesWithTheMedianOfAFullWindow) {
  SpikeGuard guard({.factor = 3, .window = 5});
  for (const double norm : {1.0, 2.0, 100.0, 1.5}) {
    EXPECT_FALSE(guard.is_spike(1e9)) << "the window is not full yet";
    guard.remember(norm);
  }
  guard.remember(1.0);
  EXPECT_EQ(guard.median(), 1.5) << "of 1, 1, 1.5, 2, 100";
  EXPECT_FALSE(guard.is_spike(4.5));
  EXPECT_TRUE(guard.is_spike(4.6));
  EXPECT_FALSE(guard.is_spike(std::nan(""))) << "not finite is told as that";
  EXPECT_FALSE(guard.is_spike(INFINITY)) << "not finite is told as that";
  guard.remember(1000.0);
  EXPECT_EQ(guard.norms().back(), 4.5) << "a spike counts as the bound that it passed";
  EXPECT_EQ(guard.median(), 2.0) << "of 1, 1.5, 2, 4.5, 100";
  for (int i = 0; i < 5; ++i) guard.remember(10.0);
  EXPECT_FALSE(guard.is_spike(10.0)) << "norms that stay high become usual";
  EXPECT_EQ(guard.norms().size(), 5u);
}

TEST(SpikeGuard, AResumedRunMayHaveAnotherWindowOrNoGuard) {
  SpikeGuard smaller({.factor = 2, .window = 3}), off({});
  for (SpikeGuard* guard : {&smaller, &off}) guard->set_norms({1, 2, 3, 4, 5});
  EXPECT_EQ(smaller.norms(), (std::deque<double>{3, 4, 5}));
  EXPECT_TRUE(off.norms().empty());
}

TEST(SpikeGuard, OffUnlessAskedFor) {
  SpikeGuard guard({});
  for (int i = 0; i < 1000; ++i) guard.remember(1.0);
  EXPECT_FALSE(guard.is_spike(1e300));
  EXPECT_TRUE(guard.norms().empty()) << "nothing goes into checkpoints";
}

}  // namespace
}  // namespace trireme::optim
