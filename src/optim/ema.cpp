#include "optim/ema.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "memory/purpose.h"

namespace trireme::optim {

Ema::Ema(std::vector<nn::Parameter*> parameters, double decay) : parameters_(std::move(parameters)), decay_(decay) {
  const memory::PurposeScope scope(memory::Purpose::moving_average);
  for (const nn::Parameter* parameter : parameters_) averages_.push_back(at::zeros_like(parameter->master()));
}

void Ema::start() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) averages_[i].copy_(parameters_[i]->master());
}

void Ema::update(int64_t updates) {
  if (updates == 1) return start();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) averages_[i].lerp_(parameters_[i]->master(), 1 - decay_);
}

}  // namespace trireme::optim
