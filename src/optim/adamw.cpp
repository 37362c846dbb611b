#include "optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/error.h"
#include "memory/purpose.h"
#include "ops/adamw.h"

namespace trireme::optim {

Adamw::Adamw(std::vector<nn::Parameter*> parameters, const config::OptimizerConfig& config, memory::FileTensors* file)
    : parameters_(std::move(parameters)), file_(file), config_(config) {
  TRIREME_CHECK((file != nullptr) == (config.offload == config::Offload::disk),
                "a file where nothing is on disk, or none");
  const memory::PurposeScope scope(memory::Purpose::moments);
  for (size_t i = 0; i < parameters_.size(); ++i) index_[parameters_[i]] = i;
  if (config.offload == config::Offload::host) offloaded_ = make_host_state(parameters_);
  if (config.offload == config::Offload::disk) offloaded_ = make_disk_state(parameters_, *file);
  if (offloaded_) return;
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
  settle();
}

void Adamw::update(std::span<nn::Parameter* const> parameters) {
  const at::NoGradGuard no_grad;
  if (!offloaded_) {
    for (const nn::Parameter* parameter : parameters)
      update_elements(*parameter, 0, parameter->held_elements(),
                      Operands::of(*parameter, moments_[index_of(parameter)]));
    return;
  }
  std::vector<size_t> indices;
  for (const nn::Parameter* parameter : parameters) indices.push_back(index_of(parameter));
  offloaded_->update(indices, [&](const OffloadedState::Piece& piece, const Operands& operands) {
    update_elements(*parameters_[piece.index], piece.first, piece.count, operands);
  });
}

// Elements [first, first + count) of what this rank holds; `operands` are of these alone.
void Adamw::update_elements(const nn::Parameter& parameter, int64_t first, int64_t count, const Operands& operands) {
  for (const nn::Fragment& fragment : parameter.fragments()) {
    const int64_t begin = std::max(first, fragment.local_offset);
    const int64_t size = std::min(first + count, fragment.local_offset + fragment.elements()) - begin;
    if (size <= 0) continue;
    const Operands part = operands.narrow(begin - first, size);
    // Where the copy that computes is the master itself, there is none to write.
    ops::adamw(part.master, part.exp_avg, part.exp_avg_sq, part.gradient, part.copy,
               {learning_rate_, config_.beta1, config_.beta2, config_.eps,
                fragment.logical->decay ? config_.weight_decay : 0.0, updates_, gradient_scale_});
  }
}

}  // namespace trireme::optim
