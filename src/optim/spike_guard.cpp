#include "optim/spike_guard.h"

#include <algorithm>
#include <cmath>
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
  return usual > 0 && std::isfinite(norm) && norm > config_.factor * usual;
}

void SpikeGuard::set_norms(std::deque<double> norms) {
  norms_ = std::move(norms);
  trim();
}

void SpikeGuard::trim() {
  const auto most = static_cast<size_t>(config_.factor > 0 ? config_.window : 0);
  while (norms_.size() > most) norms_.pop_front();
}

void SpikeGuard::remember(double norm) {
  if (config_.factor <= 0) return;
  const double usual = median();
  norms_.push_back(usual > 0 ? std::min(norm, config_.factor * usual) : norm);
  trim();
}

}  // namespace trireme::optim
