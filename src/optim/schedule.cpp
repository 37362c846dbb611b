#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::optim {

namespace {

// From 1 at q = 0 to 0 at q = 1.
double decay_shape(config::LrScheduleName name, double q) {
  using config::LrScheduleName;
  switch (name) {
    case LrScheduleName::cosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * q));
    case LrScheduleName::sqrt:
      return 1 - std::sqrt(q);
    case LrScheduleName::linear:
    case LrScheduleName::wsd:
      return 1 - q;
    case LrScheduleName::inverse_sqrt:
    case LrScheduleName::constant:
      break;
  }
  return 1;
}

}  // namespace

double learning_rate(const config::LrScheduleConfig& schedule, double peak, int64_t step) {
  const int64_t warmup = schedule.warmup_steps, decay = schedule.decay_steps;
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (schedule.name == config::LrScheduleName::inverse_sqrt) {
    const double ratio = std::sqrt(static_cast<double>(std::max<int64_t>(warmup, 1)) / static_cast<double>(step + 1));
    return peak * std::max(ratio, schedule.min_ratio);
  }
  if (decay <= 0) return peak;
  const int64_t plateau = schedule.steps + 1 - warmup - decay;
  if (step < warmup + plateau) return peak;
  const double q = std::min(1.0, static_cast<double>(step + 1 - warmup - plateau) / static_cast<double>(decay));
  return peak * (schedule.min_ratio + (1 - schedule.min_ratio) * decay_shape(schedule.name, q));
}

}  // namespace trireme::optim
