// The learning rate at each step, against the rule of TorchTitan's lr_scheduler.py written out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "optim/schedule.h"

namespace trireme::optim {
namespace {

using config::LrScheduleConfig;
using config::LrScheduleName;

struct Row {
  const char* name;
  LrScheduleName kind;
  int64_t warmup, steps, decay;
  double min_ratio;
  int64_t step;
  double expected;
};

TEST(Schedule, Table) {
  constexpr auto cosine = LrScheduleName::cosine, linear = LrScheduleName::linear, constant = LrScheduleName::constant;
  const double half_cosine = 0.5 * (1 + std::cos(std::numbers::pi * 0.5));
  const Row rows[] = {
      {"first of warm-up", cosine, 4, 100, 96, 0.1, 0, 0.25},
      {"last of warm-up", cosine, 4, 100, 96, 0.1, 3, 1.0},
      {"virtual step of plateau", cosine, 4, 100, 96, 0.1, 4, 1.0},
      {"first of decay", linear, 4, 100, 96, 0.0, 5, 1 - 1.0 / 96},
      {"middle of decay", cosine, 0, 100, 100, 0.1, 50, 0.1 + 0.9 * half_cosine},
      {"last step is not the minimum", linear, 0, 100, 100, 0.0, 99, 1.0 / 100},
      {"after the horizon", linear, 0, 100, 100, 0.2, 100, 0.2},
      {"long after the horizon", cosine, 0, 100, 100, 0.2, 1000, 0.2},
      {"plateau before a late decay", linear, 10, 100, 20, 0.0, 80, 1.0},
      {"late decay", linear, 10, 100, 20, 0.0, 90, 0.5},
      {"constant", constant, 10, 100, 0, 0.1, 99, 1.0},
      {"constant warms up", constant, 10, 100, 0, 0.1, 4, 0.5},
      {"square root, first of decay", LrScheduleName::sqrt, 4, 100, 96, 0.0, 5, 1 - std::sqrt(1.0 / 96)},
      {"square root, a quarter", LrScheduleName::sqrt, 0, 100, 100, 0.2, 25, 0.2 + 0.8 * 0.5},
      {"wsd before its decay", LrScheduleName::wsd, 10, 100, 10, 0.0, 90, 1.0},
      {"wsd in its decay", LrScheduleName::wsd, 10, 100, 10, 0.0, 95, 0.5},
      {"inverse square root at the end of warm-up", LrScheduleName::inverse_sqrt, 16, 100, 0, 0.0, 15, 1.0},
      {"inverse square root at four times warm-up", LrScheduleName::inverse_sqrt, 16, 100, 0, 0.0, 63, 0.5},
      {"inverse square root knows no horizon", LrScheduleName::inverse_sqrt, 16, 100, 0, 0.0, 1599, 0.1},
      {"inverse square root ends at its least", LrScheduleName::inverse_sqrt, 16, 100, 0, 0.25, 1599, 0.25},
      {"no warm-up", cosine, 0, 10, 10, 0.0, 0, 1.0},
  };
  for (const Row& row : rows) {
    LrScheduleConfig schedule;
    schedule.name = row.kind;
    schedule.warmup_steps = row.warmup;
    schedule.steps = row.steps;
    schedule.decay_steps = row.decay;
    schedule.min_ratio = row.min_ratio;
    EXPECT_NEAR(learning_rate(schedule, 2.0, row.step), 2.0 * row.expected, 1e-12) << row.name;
  }
}

}  // namespace
}  // namespace trireme::optim
