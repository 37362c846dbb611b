// Counter-based random numbers: a value is a pure function of a key and a position, so any layout and any number of
// ranks draws the same bits. Nothing in Trireme draws from a stateful generator.
//
// Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace trireme::random {

/// A 64-bit Philox key.
struct Key {
  uint64_t value = 0;
};

/// Key of a purpose: mixes a seed and a name (and further numbers) so that different purposes never share a stream.
Key make_key(uint64_t seed, std::string_view purpose);
Key derive(Key key, uint64_t number);

/// The four 32-bit words of block `counter` (128 bits: low, high) under `key`.
std::array<uint32_t, 4> philox(Key key, uint64_t counter_low, uint64_t counter_high = 0);

/// 64 random bits of element `index`.
uint64_t bits64(Key key, uint64_t index);
/// Uniform in the open interval (0, 1), 52 bits: never 0 or 1.
double uniform(Key key, uint64_t index);
/// Uniform integer in [0, bound), bound > 0; without bias (multiply-shift with rejection).
uint64_t below(Key key, uint64_t index, uint64_t bound);
/// Standard normal cut at +-cut standard deviations, by the inverse of its distribution function.
double truncated_normal(Key key, uint64_t index, double cut);

/// Inverse of the standard normal distribution function, |relative error| < 1e-9 before and about 1e-15 after one
/// Halley step (algorithm: P. J. Acklam's rational approximation). `p` in (0, 1).
double inverse_normal_cdf(double p);

/// A keyed bijection of [0, size): a balanced Feistel network over the next even number of bits, walked until it falls
/// inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). No table; O(1) expected.
class Permutation {
 public:
  Permutation(Key key, uint64_t size);
  uint64_t size() const { return size_; }
  /// Image of `index`, which must be below size().
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  Key key_;
  uint64_t size_;
  unsigned half_bits_;
};

}  // namespace trireme::random
