#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::optim {

double learning_rate(const config::LrScheduleConfig& schedule, double peak, int64_t step) {
  const int64_t warmup = schedule.warmup_steps, decay = schedule.decay_steps;
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (schedule.name == config::LrScheduleName::constant || decay <= 0) return peak;
  const int64_t plateau = schedule.steps + 1 - warmup - decay;
  if (step < warmup + plateau) return peak;
  const double q = std::min(1.0, static_cast<double>(step + 1 - warmup - plateau) / static_cast<double>(decay));
  const double shape =
      schedule.name == config::LrScheduleName::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * q)) : 1 - q;
  return peak * (schedule.min_ratio + (1 - schedule.min_ratio) * shape);
}

}  // namespace trireme::optim
