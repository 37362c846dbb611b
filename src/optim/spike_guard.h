// Finds steps whose gradient norm jumps: one bad batch, or a fault of the machine. Such a step is skipped, as one whose
// gradients are not finite (Chowdhery et al., "PaLM", section 5.1, skip the batches around a spike).
#pragma once

#include <cstdint>
#include <deque>

#include "config/config.h"

namespace trireme::optim {

class SpikeGuard {
 public:
  explicit SpikeGuard(const config::SpikeGuardConfig& config) : config_(config) {}

  /// Median norm of the window; 0 until it is full, or without a guard.
  double median() const;
  bool is_spike(double norm) const;
  /// The norm of a step; of a spike, the bound that it passed: one spike does not raise the median, and norms
  /// that stay high do in time.
  void remember(double norm);

  /// What a checkpoint keeps: the norms of the window, oldest first.
  const std::deque<double>& norms() const { return norms_; }
  /// Of a run whose window may have been another.
  void set_norms(std::deque<double> norms);

 private:
  void trim();

  config::SpikeGuardConfig config_;
  std::deque<double> norms_;
};

}  // namespace trireme::optim
