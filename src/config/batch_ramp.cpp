#include "config/batch_ramp.h"

#include <algorithm>

namespace trireme::config {

int64_t batch_size_at(const Config& config, int64_t seen) {
  const BatchRampConfig& ramp = config.batch_ramp;
  const int64_t full = config.train.global_batch_size;
  if (ramp.start == 0 || ramp.start >= full || seen >= ramp.samples) return full;
  const auto stretches = static_cast<double>((full - ramp.start) / ramp.increment);
  const double stretch = static_cast<double>(ramp.samples) / stretches;
  const auto grown = static_cast<int64_t>(static_cast<double>(seen) / stretch);
  return std::min(full, ramp.start + grown * ramp.increment);
}

int64_t sequences_of(const Config& config, int64_t steps) {
  int64_t seen = 0, step = 0;
  for (; step < steps && batch_size_at(config, seen) < config.train.global_batch_size; ++step)
    seen += batch_size_at(config, seen);
  return seen + (steps - step) * config.train.global_batch_size;
}

}  // namespace trireme::config
