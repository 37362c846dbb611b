// Included once for each instruction set, with TRIREME_REDUCE_NAME set. Includes nothing that has inline functions of its
// own: the linker would keep one copy of them for all, perhaps the one this machine cannot run.
#include <cstdint>

#include "base/dtype.h"
#include "comm/reduce_op.h"

namespace trireme::comm {
namespace {

struct BFloat16 {
  uint16_t bits;
};

template <typename T>
struct Element {  // how an element is held while it is combined
  using Wide = T;
  static Wide load(T value) { return value; }
  static T store(Wide value) { return value; }
};

template <>
struct Element<BFloat16> {
  using Wide = float;
  static float load(BFloat16 value) { return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16); }
  static BFloat16 store(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40;  // rounding could carry a NaN into infinity
    return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded)};
  }
};

#ifdef __FLT16_MAX__
template <>
struct Element<_Float16> {
  using Wide = float;
  static float load(_Float16 value) { return static_cast<float>(value); }
  static _Float16 store(float value) { return static_cast<_Float16>(value); }
};
#endif

struct Sum {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (static_cast<T>(0.5) == T(0)) {  // integers wrap around instead of being undefined
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <typename T>
  static T combine(T a, T b) {
    return (a > b) | (a != a) ? a : b;
  }
};
struct Min {
  template <typename T>
  static T combine(T a, T b) {
    return (a < b) | (a != a) ? a : b;
  }
};

template <typename T, typename Op>
void reduce_typed(void* const* outputs, int64_t output_count, const void* const* inputs, int64_t input_count, int64_t count) {
  using E = Element<T>;
  if (input_count == 2 && output_count == 2) {  // one pass: two ranks, in place
    auto* x = static_cast<T*>(outputs[0]);
    auto* y = static_cast<T*>(outputs[1]);
    const auto* a = static_cast<const T*>(inputs[0]);
    const auto* b = static_cast<const T*>(inputs[1]);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const T value = E::store(Op::combine(E::load(a[i]), E::load(b[i])));
      x[i] = value;
      y[i] = value;
    }
    return;
  }
  if (input_count == 2 && output_count == 1) {
    auto* x = static_cast<T*>(outputs[0]);
    const auto* a = static_cast<const T*>(inputs[0]);
    const auto* b = static_cast<const T*>(inputs[1]);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) x[i] = E::store(Op::combine(E::load(a[i]), E::load(b[i])));
    return;
  }
  constexpr int64_t block = 512;  // the partial result stays in the first cache
  typename E::Wide partial[block];
  for (int64_t start = 0; start < count; start += block) {
    const int64_t length = count - start < block ? count - start : block;
    const T* first = static_cast<const T*>(inputs[0]) + start;
    for (int64_t i = 0; i < length; ++i) partial[i] = E::load(first[i]);
    for (int64_t r = 1; r < input_count; ++r) {
      const T* next = static_cast<const T*>(inputs[r]) + start;
      for (int64_t i = 0; i < length; ++i) partial[i] = Op::combine(partial[i], E::load(next[i]));
    }
    for (int64_t r = 0; r < output_count; ++r) {
      T* output = static_cast<T*>(outputs[r]) + start;
      for (int64_t i = 0; i < length; ++i) output[i] = E::store(partial[i]);
    }
  }
}

template <typename T>
void reduce_op(void* const* outputs, int64_t output_count, const void* const* inputs, int64_t input_count, int64_t count,
               ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_typed<T, Sum>(outputs, output_count, inputs, input_count, count);
    case ReduceOp::max:
      return reduce_typed<T, Max>(outputs, output_count, inputs, input_count, count);
    case ReduceOp::min:
      return reduce_typed<T, Min>(outputs, output_count, inputs, input_count, count);
  }
}

}  // namespace

void TRIREME_REDUCE_NAME(void* const* outputs, int64_t output_count, const void* const* inputs, int64_t input_count,
                         int64_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f32:
      return reduce_op<float>(outputs, output_count, inputs, input_count, count, op);
    case DType::f64:
      return reduce_op<double>(outputs, output_count, inputs, input_count, count, op);
    case DType::bf16:
      return reduce_op<BFloat16>(outputs, output_count, inputs, input_count, count, op);
    case DType::f16:
#ifdef __FLT16_MAX__
      return reduce_op<_Float16>(outputs, output_count, inputs, input_count, count, op);
#else
#error "this compiler has no _Float16"
#endif
    case DType::i32:
      return reduce_op<int32_t>(outputs, output_count, inputs, input_count, count, op);
    case DType::i64:
      return reduce_op<int64_t>(outputs, output_count, inputs, input_count, count, op);
    case DType::u8:
      return reduce_op<uint8_t>(outputs, output_count, inputs, input_count, count, op);
  }
}

}  // namespace trireme::comm
