#include "checkpoint/statistics.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/reader.h"

namespace trireme::checkpoint {
namespace {

double from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

/// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
double from_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int fraction = bits & 0x3ff;
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == 0x1f) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(fraction + 1024, exponent - 25);
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

double element(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::u8:
      return load<uint8_t>(from);
    case DType::i32:
      return load<int32_t>(from);
    case DType::i64:
      return static_cast<double>(load<int64_t>(from));
    case DType::f16:
      return from_f16(load<uint16_t>(from));
    case DType::bf16:
      return from_bf16(load<uint16_t>(from));
    case DType::f32:
      return load<float>(from);
    case DType::f64:
      return load<double>(from);
  }
  return 0;
}

}  // namespace

Statistics statistics(const CheckpointReader& reader, const LogicalTensor& tensor) {
  Statistics result;
  double sum = 0, sum_of_squares = 0;
  int64_t finite = 0;
  const int64_t element_bytes = size_of(tensor.dtype);
  reader.stream(tensor, [&](std::span<const std::byte> values) {
    for (size_t at = 0; at < values.size(); at += static_cast<size_t>(element_bytes)) {
      const double value = element(tensor.dtype, values.data() + at);
      if (!std::isfinite(value)) {
        ++result.not_finite;
        continue;
      }
      result.minimum = finite == 0 ? value : std::min(result.minimum, value);
      result.maximum = finite == 0 ? value : std::max(result.maximum, value);
      sum += value;
      sum_of_squares += value * value;
      ++finite;
    }
  });
  if (finite > 0) {
    result.mean = sum / static_cast<double>(finite);
    result.root_mean_square = std::sqrt(sum_of_squares / static_cast<double>(finite));
  }
  return result;
}

}  // namespace trireme::checkpoint
