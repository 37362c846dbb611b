#include "observe/histogram.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace trireme::observe {
namespace {

std::vector<double> make_limits() {
  std::vector<double> positive;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> limits(positive.rbegin(), positive.rend());
  for (double& limit : limits) limit = -limit;
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

// Values that share sign and exponent span at most 8 buckets. From the first of these the right one is a few steps
// away, where a binary search over all takes eleven.
struct Buckets {
  std::vector<double> limits = make_limits();
  std::array<uint16_t, 4096> first{};  ///< by sign and exponent, the upper 12 bits

  Buckets() {
    for (uint64_t key = 0; key < first.size(); ++key) {
      const bool negative = key >= 2048;
      const auto lowest = std::bit_cast<double>(key << 52 | (negative ? (uint64_t{1} << 52) - 1 : 0));
      if (std::isfinite(lowest)) first[key] = static_cast<uint16_t>(find(lowest));
    }
  }
  size_t of(double value) const {
    size_t bucket = first[std::bit_cast<uint64_t>(value) >> 52];
    while (bucket + 1 < limits.size() && limits[bucket] <= value) ++bucket;
    return bucket;
  }

 private:
  // The largest double lies on the last limit, and is counted below it.
  size_t find(double value) const {
    return static_cast<size_t>(std::upper_bound(limits.begin(), limits.end() - 1, value) - limits.begin());
  }
};

template <typename T>
Histogram make(std::span<const T> values) {
  static const Buckets buckets;
  std::vector<int64_t> counts(buckets.limits.size());
  Histogram result;
  result.min = std::numeric_limits<double>::infinity();
  result.max = -result.min;
  for (const T element : values) {
    const auto value = static_cast<double>(element);
    if (!std::isfinite(value)) continue;
    ++result.count;
    result.min = std::min(result.min, value);
    result.max = std::max(result.max, value);
    result.sum += value;
    result.sum_of_squares += value * value;
    ++counts[buckets.of(value)];
  }
  if (result.count == 0) return {};
  const size_t first = buckets.of(result.min), last = buckets.of(result.max);
  for (size_t i = first; i <= last; ++i) {
    result.limits.push_back(buckets.limits[i]);
    result.counts.push_back(static_cast<double>(counts[i]));
  }
  return result;
}

}  // namespace

Histogram histogram(std::span<const float> values) { return make(values); }
Histogram histogram(std::span<const double> values) { return make(values); }

}  // namespace trireme::observe
