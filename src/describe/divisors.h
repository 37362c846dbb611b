// Which numbers divide: for messages that say what would work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::describe {

/// The divisors of n > 0 that lie nearest to `wanted`: the largest below and the smallest above (`wanted` itself when
/// it divides). One or two numbers, in order.
std::vector<int64_t> nearest_divisors(int64_t n, int64_t wanted);

/// The multiples of unit > 0 nearest to `wanted`, at least one unit: one or two numbers, in order.
std::vector<int64_t> nearest_multiples(int64_t unit, int64_t wanted);

/// "2 or 4"
std::string either(const std::vector<int64_t>& numbers);

/// "2 or 4 do", "1 does": what divides n instead.
std::string what_divides(int64_t n, int64_t wanted);

}  // namespace trireme::describe
