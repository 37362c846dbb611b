// Arrays of any dtype whose values, and all their sums, are small whole numbers: exact in every dtype and any order.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "comm/reduce_op.h"

namespace trireme::comm::testing {

/// Element `i` of rank `r`'s input: 0 to 12, so that eight ranks sum to at most 96.
inline int64_t value_of(int64_t r, int64_t i) { return (r * 5 + i * 3 + i / 64) % 13; }

inline void store(DType dtype, std::byte* to, int64_t value) {
  const auto put = [to](auto v) { std::memcpy(to, &v, sizeof v); };
  switch (dtype) {
    case DType::u8:
      return put(static_cast<uint8_t>(value));
    case DType::i32:
      return put(static_cast<int32_t>(value));
    case DType::i64:
      return put(value);
    case DType::f16:
      return put(static_cast<_Float16>(value));
    case DType::bf16: {
      const auto f = static_cast<float>(value);
      uint32_t bits = 0;
      std::memcpy(&bits, &f, 4);
      return put(static_cast<uint16_t>(bits >> 16));
    }
    case DType::f32:
      return put(static_cast<float>(value));
    case DType::f64:
      return put(static_cast<double>(value));
  }
}

template <typename Value>
void fill(DType dtype, std::byte* to, int64_t count, Value&& value) {
  for (int64_t i = 0; i < count; ++i) store(dtype, to + i * size_of(dtype), value(i));
}

/// Index of the first element that is not `value(i)`, or -1.
template <typename Value>
int64_t first_difference(DType dtype, const std::byte* data, int64_t count, Value&& value) {
  std::byte expected[8] = {};
  for (int64_t i = 0; i < count; ++i) {
    store(dtype, expected, value(i));
    if (std::memcmp(expected, data + i * size_of(dtype), static_cast<size_t>(size_of(dtype))) != 0) return i;
  }
  return -1;
}

inline int64_t reduced(ReduceOp op, int64_t ranks, int64_t i) {
  int64_t total = value_of(0, i);
  for (int64_t r = 1; r < ranks; ++r) {
    const int64_t v = value_of(r, i);
    total = op == ReduceOp::sum ? total + v : op == ReduceOp::max ? std::max(total, v) : std::min(total, v);
  }
  return total;
}

}  // namespace trireme::comm::testing
