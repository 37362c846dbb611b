// AdamW over the parameters of a model: master weights, moments, and the copy that computes.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "config/config.h"
#include "memory/file_tensors.h"
#include "nn/parameter.h"
#include "optim/offloaded_state.h"

namespace trireme::optim {

class Adamw {
 public:
  /// Moments start at zero, in the compute type, on the parameters' device; with config.offload in the host's memory,
  /// or in `file`, which must outlive this. Masters are where the parameters have them.
  Adamw(std::vector<nn::Parameter*> parameters, const config::OptimizerConfig& config,
        memory::FileTensors* file = nullptr);

  /// One update of all parameters from their gradients times `gradient_scale`. Logical tensors without `decay` are not
  /// decayed.
  void step(double learning_rate, double gradient_scale);
  /// The same in pieces: begin_step(), then each parameter once.
  void begin_step(double learning_rate, double gradient_scale);
  void update(std::span<nn::Parameter* const> parameters);

  /// Updates so far: what bias correction counts. A skipped step does not count.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  /// In parameters().
  size_t index_of(const nn::Parameter* parameter) const { return index_.at(parameter); }
  /// Of each of parameters(); between updates.
  const std::vector<Moments>& moments() const { return offloaded_ ? offloaded_->moments() : moments_; }
  /// What is on disk leaves memory again, after moments or masters were read or written there.
  void settle() const {
    if (file_ != nullptr) file_->settle();
  }

 private:
  void update_elements(const nn::Parameter& parameter, int64_t first, int64_t count, const Operands& operands);

  std::vector<nn::Parameter*> parameters_;
  std::vector<Moments> moments_;
  memory::FileTensors* file_;  // null: nothing is on disk
  std::unique_ptr<OffloadedState> offloaded_;
  config::OptimizerConfig config_;
  std::unordered_map<const nn::Parameter*, size_t> index_;  // in parameters_
  int64_t updates_ = 0;
  double learning_rate_ = 0, gradient_scale_ = 1;  // of the present update
};

}  // namespace trireme::optim
