// How long a call takes, on a machine that may do other things as well.
#pragma once

#include <functional>
#include <vector>

namespace trireme::train {

struct CallTime {
  double best_s = 0, median_s = 0;  ///< of stretches of calls, for one call
};

/// Repeats `call` for about `seconds`, in stretches of 10 ms or one call, five at least. The first, which allocates and
/// warms caches, does not count. What disturbs a measurement only slows it down, so `best_s` is the machine's.
CallTime time_calls(const std::function<void()>& call, double seconds);

/// The `share` quantile of `values` (not empty) by the nearest rank.
double quantile(std::vector<double> values, double share);

}  // namespace trireme::train
