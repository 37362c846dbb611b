// The scale of the loss in fp16, whose smallest gradients would be zeros and whose largest infinite: it falls when a
// gradient is not finite and grows after a row of sound steps (Micikevicius et al., arXiv:1710.03740, section 3.2; the
// rule of torch.amp.GradScaler). With a floor of 1, as Megatron's min_loss_scale.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace trireme::optim {

class LossScaler {
 public:
  /// What a checkpoint keeps.
  struct State {
    double scale = 1;
    int64_t sound_steps = 0;  ///< in a row, since the scale last changed
    bool operator==(const State&) const = default;
  };

  /// In other precisions than fp16 the scale is 1 for ever.
  LossScaler(const config::LossScaleConfig& config, config::Precision precision);

  double scale() const { return state_.scale; }
  bool active() const { return active_; }
  /// After each step; `finite`: all its gradients were.
  void update(bool finite);

  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  config::LossScaleConfig config_;
  bool active_;
  State state_;
};

}  // namespace trireme::optim
