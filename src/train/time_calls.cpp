#include "train/time_calls.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace trireme::train {
namespace {

constexpr double kStretch_s = 0.01;
constexpr size_t kFewestStretches = 5;

double run(const std::function<void()>& call, int64_t count) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

CallTime time_calls(const std::function<void()>& call, double seconds) {
  call();
  const double once = std::max(run(call, 1), 1e-9);
  const auto count = static_cast<int64_t>(std::max(1.0, std::ceil(kStretch_s / once)));
  std::vector<double> stretches;
  for (double spent = 0; stretches.size() < kFewestStretches || spent < seconds;
       spent += stretches.back() * static_cast<double>(count))
    stretches.push_back(run(call, count) / static_cast<double>(count));
  return {std::ranges::min(stretches), quantile(stretches, 0.5)};
}

double quantile(std::vector<double> values, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::clamp<size_t>(rank, 1, values.size()) - 1);
  std::ranges::nth_element(values, at);
  return *at;
}

}  // namespace trireme::train
