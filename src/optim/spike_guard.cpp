#include "optim/spike_guard.h"

#include <algorithm>
#include <vector>

namespace trireme::optim {

double SpikeGuard::median() const {
  if (config_.factor <= 0 || static_cast<int64_t>(norms_.size()) < config_.window) return 0;
  std::vector<double> sorted(norms_.begin(), norms_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

bool SpikeGuard::is_spike(double norm) const {
  const double usual = median();
  return usual > 0 && norm > config_.factor * usual;
}

void SpikeGuard::remember(double norm) {
  if (config_.factor <= 0) return;
  norms_.push_back(is_spike(norm) ? config_.factor * median() : norm);
  if (static_cast<int64_t>(norms_.size()) > config_.window) norms_.pop_front();
}

}  // namespace trireme::optim
