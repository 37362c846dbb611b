// Compiled once per instruction-set level (TRIREME_KERNEL_LEVEL); see lanes.h for what that asks of the code.
#include "ops/lanes.h"
#include "ops/quantize_kernels.h"

namespace trireme::ops {
namespace TRIREME_KERNEL_LEVEL {
namespace {

typedef int32_t Integers __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef int8_t Codes __attribute__((vector_size(kLanes)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

constexpr uint32_t kInfinity = 0x7F800000;  // as bits: what is not less is not finite, once the sign is off
// Blocks whose largest number is below 2^-119 are zeros: their scale would not be a normal number.
constexpr uint32_t kSmallest = (127 - 119) << 23;
// The sum of a small number and 1.5 * 2^23 has the number, rounded to nearest, ties to even, in its last bits.
constexpr float kRounder = 12582912.0f;
constexpr int32_t kRounderBits = 0x4B400000;
// 1/127 and 1/7, not rounded up: the largest code times the scale does not pass what it stands for.
constexpr float kPerLevel8 = 0x1.020408p-7f, kPerLevel4 = 0x1.249248p-3f;

inline uint32_t higher_of(uint32_t a, uint32_t b) { return a > b ? a : b; }
inline Words higher_of(Words a, Words b) { return a > b ? a : b; }

inline uint32_t size_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7FFFFFFF;
}
inline Words size_bits(Lanes<float> x) { return reinterpret_cast<Words>(x) & 0x7FFFFFFF; }

inline int32_t rounded_to_integer(float x) {
  const float shifted = x + kRounder;
  int32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  return bits - kRounderBits;
}
inline Integers rounded_to_integer(Lanes<float> x) { return reinterpret_cast<Integers>(x + kRounder) - kRounderBits; }

inline float as_float(int32_t x) { return static_cast<float>(x); }
inline Lanes<float> as_float(Integers x) { return __builtin_convertvector(x, Lanes<float>); }

// values[i] + residual[i]
template <typename I>
inline auto sum_at(const float* values, const float* residual, I i) {
  return residual == nullptr ? load(values, i) : load(values, i) + load(residual, i);
}

inline uint32_t largest_bits(int64_t count, const float* values, const float* residual) {
  Words most = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) most = higher_of(most, size_bits(sum_at(values, residual, Block{i})));
  uint32_t largest = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) largest = higher_of(largest, most[lane]);
  for (; i < count; ++i) largest = higher_of(largest, size_bits(sum_at(values, residual, i)));
  return largest;
}

inline void put_code(uint8_t* codes, int64_t i, int32_t code) { codes[i] = static_cast<uint8_t>(code); }
inline void put_code(uint8_t* codes, Block at, Integers code) {
  const Codes narrow = __builtin_convertvector(code, Codes);
  memcpy(codes + at.first, &narrow, sizeof narrow);
}
inline int32_t code_at(const uint8_t* codes, int64_t i) { return static_cast<int8_t>(codes[i]); }
inline Integers code_at(const uint8_t* codes, Block at) {
  Codes narrow;
  memcpy(&narrow, codes + at.first, sizeof narrow);
  return __builtin_convertvector(narrow, Integers);
}

// Two codes in a byte, each plus 8: the first half of a block in the lower bits, the second in the upper ones, so that
// sixteen bytes are two runs of sixteen numbers.
inline void put_codes(uint8_t* codes, int64_t i, int32_t low, int32_t high) {
  codes[i] = static_cast<uint8_t>((low + 8) | ((high + 8) << 4));
}
inline void put_codes(uint8_t* codes, Block at, Integers low, Integers high) {
  const Bytes both = __builtin_convertvector((low + 8) | ((high + 8) << 4), Bytes);
  memcpy(codes + at.first, &both, sizeof both);
}
inline int32_t low_code(const uint8_t* codes, int64_t i) { return (codes[i] & 15) - 8; }
inline int32_t high_code(const uint8_t* codes, int64_t i) { return (codes[i] >> 4) - 8; }
inline Integers both_codes(const uint8_t* codes, Block at) {
  Bytes both;
  memcpy(&both, codes + at.first, sizeof both);
  return __builtin_convertvector(both, Integers);
}
inline Integers low_code(const uint8_t* codes, Block at) { return (both_codes(codes, at) & 15) - 8; }
inline Integers high_code(const uint8_t* codes, Block at) { return (both_codes(codes, at) >> 4) - 8; }

inline int64_t shifted(int64_t i, int64_t by) { return i + by; }
inline Block shifted(Block at, int64_t by) { return {at.first + by}; }

void quantize(int bits, int64_t count, const float* __restrict values, float* __restrict residual,
              float* __restrict scale, uint8_t* __restrict codes) {
  const uint32_t largest = largest_bits(count, values, residual);
  const int64_t half = (count + 1) / 2;
  if (largest >= kInfinity || largest < kSmallest) {
    const uint32_t value = largest >= kInfinity ? 0x7FC00000 : 0;  // NaN times any code is NaN
    memcpy(scale, &value, sizeof value);
    if (bits == 8)
      memset(codes, 0, static_cast<size_t>(count));
    else
      memset(codes, 0x88, static_cast<size_t>(half));
    if (residual != nullptr && largest < kInfinity)
      each(count, [&](auto i) { put(residual, i, load(values, i) + load(residual, i)); });
    return;
  }
  float most;
  memcpy(&most, &largest, sizeof most);
  const float step = most * (bits == 8 ? kPerLevel8 : kPerLevel4), inverse = 1.0f / step;
  *scale = step;
  const auto code_of = [&](auto i) {
    const auto value = sum_at(values, residual, i);
    const auto code = rounded_to_integer(value * inverse);
    if (residual != nullptr) put(residual, i, value - as_float(code) * step);
    return code;
  };
  if (bits == 8) {
    each(count, [&](auto i) { put_code(codes, i, code_of(i)); });
    return;
  }
  each(count / 2, [&](auto i) { put_codes(codes, i, code_of(i), code_of(shifted(i, half))); });
  if (count % 2 == 1) put_codes(codes, half - 1, code_of(half - 1), 0);
}

// body(i, code) for each number of a block.
template <typename Body>
inline void each_code(int bits, int64_t count, const uint8_t* codes, Body body) {
  if (bits == 8) {
    each(count, [&](auto i) { body(i, code_at(codes, i)); });
    return;
  }
  const int64_t half = (count + 1) / 2;
  each(count / 2, [&](auto i) {
    body(i, low_code(codes, i));
    body(shifted(i, half), high_code(codes, i));
  });
  if (count % 2 == 1) body(half - 1, low_code(codes, half - 1));
}

template <typename T>
void dequantize(int bits, int64_t count, float scale, const uint8_t* __restrict codes, T* __restrict out) {
  each_code(bits, count, codes, [&](auto i, auto code) { put(out, i, as_float(code) * scale); });
}

void add(int bits, int64_t count, float scale, const uint8_t* __restrict codes, float* __restrict sum) {
  each_code(bits, count, codes, [&](auto i, auto code) { put(sum, i, load(sum, i) + as_float(code) * scale); });
}

constexpr QuantizeKernels kTable = {&quantize, &dequantize<Bf16>, &dequantize<F16>, &dequantize<float>, &add};

}  // namespace

// Declared in quantize_kernels.cpp.
const QuantizeKernels& quantize_table();
const QuantizeKernels& quantize_table() { return kTable; }

}  // namespace TRIREME_KERNEL_LEVEL
}  // namespace trireme::ops
