// AdamW over the parameters of a model: master weights, moments, and the copy that computes.
#pragma once

#include <span>
#include <vector>

#include "config/config.h"
#include "nn/parameter.h"

namespace trireme::optim {

class Adamw {
 public:
  /// Moments start at zero, in the compute type, on the parameters' device.
  Adamw(std::vector<nn::Parameter*> parameters, const config::OptimizerConfig& config);

  /// One update of all parameters from their gradients times `gradient_scale`. Logical tensors without `decay` are not
  /// decayed.
  void step(double learning_rate, double gradient_scale);

  /// Updates so far: what bias correction counts. A skipped step does not count.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

  /// State of parameter `index` of parameters(): tensors of the parameter's shape.
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq;
  };
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  const std::vector<Moments>& moments() const { return moments_; }

 private:
  std::vector<nn::Parameter*> parameters_;
  std::vector<Moments> moments_;
  config::OptimizerConfig config_;
  int64_t updates_ = 0;
};

}  // namespace trireme::optim
