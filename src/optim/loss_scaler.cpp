#include "optim/loss_scaler.h"

#include <algorithm>

namespace trireme::optim {

LossScaler::LossScaler(const config::LossScaleConfig& config, config::Precision precision)
    : config_(config), active_(precision == config::Precision::fp16) {
  if (active_) state_.scale = config_.initial;
}

void LossScaler::update(bool finite) {
  if (!active_) return;
  if (!finite) {
    state_ = {std::max(1.0, state_.scale * config_.backoff_factor), 0};
  } else if (++state_.sound_steps == config_.growth_interval) {
    // Beyond fp32's range it would make every gradient infinite and fall again.
    state_ = {std::min(0x1p120, state_.scale * config_.growth_factor), 0};
  }
}

}  // namespace trireme::optim
