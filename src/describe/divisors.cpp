#include "describe/divisors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace trireme::describe {

std::vector<int64_t> nearest_divisors(int64_t n, int64_t wanted) {
  int64_t below = 0, above = 0;
  const auto consider = [&](int64_t divisor) {
    if (divisor <= wanted) below = std::max(below, divisor);
    if (divisor >= wanted && (above == 0 || divisor < above)) above = divisor;
  };
  for (int64_t divisor = 1; divisor <= n / divisor; ++divisor) {
    if (n % divisor != 0) continue;
    consider(divisor);
    consider(n / divisor);
  }
  std::vector<int64_t> found;
  if (below > 0) found.push_back(below);
  if (above > 0 && above != below) found.push_back(above);
  return found;
}

std::vector<int64_t> nearest_multiples(int64_t unit, int64_t wanted) {
  const int64_t below = wanted / unit * unit;
  if (below == wanted && wanted > 0) return {wanted};
  if (below <= 0) return {unit};
  return {below, below + unit};
}

std::string either(const std::vector<int64_t>& numbers) { return fmt::format("{}", fmt::join(numbers, " or ")); }

std::string what_divides(int64_t n, int64_t wanted) {
  const std::vector<int64_t> divisors = nearest_divisors(n, wanted);
  return fmt::format("{} {}", either(divisors), divisors.size() == 1 ? "does" : "do");
}

}  // namespace trireme::describe
