#include "base/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/hash.h"

namespace trireme::random {
namespace {

constexpr uint32_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57;  // Salmon et al., table 2
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

}  // namespace

Key make_key(uint64_t seed, std::string_view purpose) { return {hash64(purpose, seed)}; }

Key derive(Key key, uint64_t number) {
  return {hash64({reinterpret_cast<const char*>(&number), sizeof number}, key.value)};
}

std::array<uint32_t, 4> philox(Key key, uint64_t low, uint64_t high) {
  std::array<uint32_t, 4> x{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
                            static_cast<uint32_t>(high >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key.value), k1 = static_cast<uint32_t>(key.value >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{kMultiply0} * x[0], b = uint64_t{kMultiply1} * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return x;
}

uint64_t bits64(Key key, uint64_t index) {
  const auto words = philox(key, index);
  return uint64_t{words[1]} << 32 | words[0];
}

double uniform(Key key, uint64_t index) {
  // The half step keeps the value strictly inside (0, 1), which the inverse distribution function needs.
  return (static_cast<double>(bits64(key, index) >> 12) + 0.5) * 0x1p-52;
}

uint64_t below(Key key, uint64_t index, uint64_t bound) {
  TRIREME_CHECK(bound > 0, "bound {}", bound);
  const uint64_t threshold =
      (0 - bound) % bound;  // 2^64 mod bound: products whose low word is below it would be biased
  for (uint64_t attempt = 0;; ++attempt) {
    const auto words = philox(key, index, attempt);
    const auto product = static_cast<unsigned __int128>(uint64_t{words[1]} << 32 | words[0]) * bound;
    if (static_cast<uint64_t>(product) >= threshold) return static_cast<uint64_t>(product >> 64);
  }
}

double inverse_normal_cdf(double p) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                          1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
                          -1.328068155288572e+01};
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                          -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
  constexpr double low = 0.02425;
  const auto tail = [&](double q) {
    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  };
  double x;
  if (p < low) {
    x = tail(std::sqrt(-2 * std::log(p)));
  } else if (p > 1 - low) {
    x = -tail(std::sqrt(-2 * std::log1p(-p)));
  } else {
    const double q = p - 0.5, r = q * q;
    x = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
        (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
  }
  const double error = 0.5 * std::erfc(-x / std::numbers::sqrt2) - p;
  const double step = error * std::sqrt(2 * std::numbers::pi) * std::exp(x * x / 2);
  return x - step / (1 + x * step / 2);
}

double truncated_normal(Key key, uint64_t index, double cut) {
  const double edge = 0.5 * std::erfc(cut / std::numbers::sqrt2);  // mass below -cut
  return inverse_normal_cdf(edge + uniform(key, index) * (1 - 2 * edge));
}

Permutation::Permutation(Key key, uint64_t size) : key_(key), size_(size) {
  TRIREME_CHECK(size > 0, "a permutation of {} elements", size);
  const unsigned bits = std::max(2u, static_cast<unsigned>(std::bit_width(size - 1)));
  half_bits_ = (bits + 1) / 2;
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  // Six rounds: four already give a strong pseudorandom permutation (Luby and Rackoff), two more cost nothing here.
  for (uint64_t round = 0; round < 6; ++round) {
    const uint64_t mixed = left ^ (bits64({key_.value + round * 0x9E3779B97F4A7C15}, right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  TRIREME_CHECK(index < size_, "index {} of {}", index, size_);
  uint64_t value = encrypt(index);
  while (value >= size_) value = encrypt(value);
  return value;
}

}  // namespace trireme::random
