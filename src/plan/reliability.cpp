#include "plan/reliability.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace trireme::plan {

double machine_mtbf_s(double gpu_mtbf_hours, int64_t gpus) { return gpu_mtbf_hours * 3600 / static_cast<double>(gpus); }

double young_interval_s(const Failures& failures) {
  return std::sqrt(2 * failures.checkpoint_s * failures.mean_time_between_s);
}

double daly_interval_s(const Failures& failures) {
  const double d = failures.checkpoint_s, m = failures.mean_time_between_s;
  if (d >= 2 * m) return m;
  const double ratio = d / (2 * m);
  return std::sqrt(2 * d * m) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - d;
}

double goodput(const Failures& failures, double interval_s) {
  const double m = failures.mean_time_between_s, d = failures.checkpoint_s;
  if (m <= 0) return interval_s / (interval_s + d);
  return interval_s / (m * std::exp(failures.restart_s / m) * std::expm1((interval_s + d) / m));
}

double goodput_first_order(const Failures& failures, double interval_s) {
  const double m = failures.mean_time_between_s;
  const double lost = m > 0 ? (failures.restart_s + interval_s / 2) / m : 0;
  return std::max(0.0, (1 - lost) / (1 + failures.checkpoint_s / interval_s));
}

double simulate_goodput(const Failures& failures, double interval_s, int64_t failures_to_see, uint64_t seed) {
  // A generator whose numbers the standard fixes, and our own inverse of the distribution: alike on every library.
  std::mt19937_64 generator(seed);
  const double scale = failures.mean_time_between_s / std::tgamma(1 + 1 / failures.shape);
  const auto lifetime = [&] {
    const double uniform = (static_cast<double>(generator() >> 11) + 0.5) * 0x1p-53;
    return scale * std::pow(-std::log(uniform), 1 / failures.shape);
  };
  const double period = interval_s + failures.checkpoint_s;
  double wall = 0, work = 0;
  bool restarting = false;
  for (int64_t i = 0; i < failures_to_see; ++i) {
    double left = lifetime();
    wall += left;
    if (restarting) {
      if (left < failures.restart_s) continue;  // the restart fails, and begins again
      left -= failures.restart_s;
    }
    work += std::floor(left / period) * interval_s;
    restarting = true;
  }
  return wall > 0 ? work / wall : 0;
}

int64_t spares(int64_t machines, double machine_mtbf_hours, double repair_hours, double confidence) {
  const double mean = static_cast<double>(machines) * repair_hours / machine_mtbf_hours;
  double term = std::exp(-mean), sum = term;
  int64_t count = 0;
  while (sum < confidence && count < machines) {
    ++count;
    term *= mean / static_cast<double>(count);
    sum += term;
  }
  return count;
}

}  // namespace trireme::plan
