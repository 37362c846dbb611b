#include "optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "memory/purpose.h"
#include "ops/adamw.h"

namespace trireme::optim {

Adamw::Adamw(std::vector<nn::Parameter*> parameters, const config::OptimizerConfig& config)
    : parameters_(std::move(parameters)), config_(config) {
  const memory::PurposeScope scope(memory::Purpose::moments);
  for (const nn::Parameter* parameter : parameters_)
    moments_.push_back({at::zeros_like(parameter->master()), at::zeros_like(parameter->master())});
}

void Adamw::step(double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  ++updates_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& parameter = *parameters_[i];
    // What this rank holds of it, flat; where the copy that computes is the master itself, there is none to write.
    const auto flat = [](const at::Tensor& tensor) { return tensor.view({-1}); };
    const at::Tensor master = flat(parameter.master()), gradient = flat(parameter.gradient()),
                     m = flat(moments_[i].exp_avg), v = flat(moments_[i].exp_avg_sq),
                     copy = parameter.copy().defined() ? flat(parameter.copy()) : at::Tensor();
    for (const nn::Fragment& fragment : parameter.fragments()) {
      const auto part = [&](const at::Tensor& tensor) {
        return tensor.defined() ? tensor.narrow(0, fragment.local_offset, fragment.elements()) : tensor;
      };
      ops::adamw(part(master), part(m), part(v), part(gradient), part(copy),
                 {learning_rate, config_.beta1, config_.beta2, config_.eps,
                  fragment.logical->decay ? config_.weight_decay : 0.0, updates_, gradient_scale});
    }
  }
}

}  // namespace trireme::optim
