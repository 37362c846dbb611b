// AdamW over the parameters of a model: master weights, moments, and the copy that computes.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "config/config.h"
#include "nn/parameter.h"
#include "optim/moment_file.h"

namespace trireme::optim {

class Adamw {
 public:
  /// Moments start at zero, in the compute type, on the parameters' device; with config.offload in a file in
  /// `offload_folder`.
  Adamw(std::vector<nn::Parameter*> parameters, const config::OptimizerConfig& config,
        const std::filesystem::path& offload_folder = {});

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
  const std::vector<Moments>& moments() const { return file_ ? file_->moments() : moments_; }
  /// Moments that are kept on disk leave memory again, after moments() was read or written.
  void settle() const {
    if (file_) file_->settle();
  }
  /// Where the moments are on disk; null: in memory.
  const MomentFile* moment_file() const { return file_.get(); }

 private:
  void update_elements(const nn::Parameter& parameter, int64_t first, int64_t count, const Moments& moments);

  std::vector<nn::Parameter*> parameters_;
  std::vector<Moments> moments_;
  std::unique_ptr<MomentFile> file_;
  config::OptimizerConfig config_;
  std::unordered_map<const nn::Parameter*, size_t> index_;  // in parameters_
  int64_t updates_ = 0;
  double learning_rate_ = 0, gradient_scale_ = 1;  // of the present update
};

}  // namespace trireme::optim
