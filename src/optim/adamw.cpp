#include "optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "memory/purpose.h"
#include "ops/adamw.h"

namespace trireme::optim {

Adamw::Adamw(std::vector<nn::Parameter*> parameters, const config::OptimizerConfig& config,
             const std::filesystem::path& offload_folder)
    : parameters_(std::move(parameters)), config_(config) {
  const memory::PurposeScope scope(memory::Purpose::moments);
  for (size_t i = 0; i < parameters_.size(); ++i) index_[parameters_[i]] = i;
  if (config.offload == config::Offload::disk) {
    file_ = std::make_unique<MomentFile>(offload_folder, parameters_);
    return;
  }
  for (const nn::Parameter* parameter : parameters_)
    moments_.push_back({at::zeros_like(parameter->master()), at::zeros_like(parameter->master())});
}

void Adamw::step(double learning_rate, double gradient_scale) {
  begin_step(learning_rate, gradient_scale);
  update(parameters_);
}

void Adamw::begin_step(double learning_rate, double gradient_scale) {
  ++updates_;
  learning_rate_ = learning_rate;
  gradient_scale_ = gradient_scale;
}

void Adamw::update(std::span<nn::Parameter* const> parameters) {
  const at::NoGradGuard no_grad;
  if (!file_) {
    for (const nn::Parameter* parameter : parameters)
      update_elements(*parameter, 0, parameter->held_elements(), moments_[index_of(parameter)]);
    return;
  }
  std::vector<size_t> indices;
  for (const nn::Parameter* parameter : parameters) indices.push_back(index_of(parameter));
  file_->update(indices, [&](const MomentFile::Piece& piece, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq) {
    update_elements(*parameters_[piece.index], piece.first, piece.count, {exp_avg, exp_avg_sq});
  });
}

// Elements [first, first + count) of what this rank holds; `moments` are of these alone.
void Adamw::update_elements(const nn::Parameter& parameter, int64_t first, int64_t count, const Moments& moments) {
  for (const nn::Fragment& fragment : parameter.fragments()) {
    const int64_t begin = std::max(first, fragment.local_offset);
    const int64_t size = std::min(first + count, fragment.local_offset + fragment.elements()) - begin;
    if (size <= 0) continue;
    const auto of_parameter = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.view({-1}).narrow(0, begin, size) : tensor;
    };
    const auto of_moments = [&](const at::Tensor& tensor) { return tensor.view({-1}).narrow(0, begin - first, size); };
    // Where the copy that computes is the master itself, there is none to write.
    ops::adamw(of_parameter(parameter.master()), of_moments(moments.exp_avg), of_moments(moments.exp_avg_sq),
               of_parameter(parameter.gradient()), of_parameter(parameter.copy()),
               {learning_rate_, config_.beta1, config_.beta2, config_.eps,
                fragment.logical->decay ? config_.weight_decay : 0.0, updates_, gradient_scale_});
  }
}

}  // namespace trireme::optim
