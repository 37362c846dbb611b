// How values spread: counts in TensorFlow's default buckets, which grow by 10 % from 1e-12 to 1e20 on both sides of 0
// (tensorflow/core/lib/histogram/histogram.cc).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::observe {

struct Histogram {
  int64_t count = 0;  ///< finite values; others are left out
  double min = 0, max = 0;
  double sum = 0, sum_of_squares = 0;
  /// Bucket i holds values in [limits[i - 1], limits[i]); the first and the last bucket are not empty.
  std::vector<double> limits;
  std::vector<double> counts;
};

/// All zero and empty when no value is finite.
Histogram histogram(std::span<const float> values);
Histogram histogram(std::span<const double> values);

/// Of a weight or a gradient.
struct NamedHistogram {
  std::string name;
  Histogram histogram;
};

}  // namespace trireme::observe
