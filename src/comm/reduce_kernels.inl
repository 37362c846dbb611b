// Included once for each instruction set, with TRIREME_REDUCE_NAME set. Includes nothing that has inline functions of its
// own: the linker would keep one copy of them for all, perhaps the one this machine cannot run.
#include <cstdint>

#include "base/dtype.h"
#include "comm/reduce_kernels.h"
#include "comm/reduce_op.h"

namespace trireme::comm {
namespace {

struct BFloat16;  // in memory a plain uint16_t: the compiler makes no vectors of structs

template <typename T>
struct Element {  // how an element is held while it is combined
  using Stored = T;
  using Wide = T;
  static Wide load(T value) { return value; }
  static T store(Wide value) { return value; }
};

template <>
struct Element<BFloat16> {
  using Stored = uint16_t;
  using Wide = float;
  static float load(uint16_t value) { return __builtin_bit_cast(float, static_cast<uint32_t>(value) << 16); }
  static uint16_t store(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40;  // rounding could carry a NaN into infinity
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
  }
};

#ifdef __FLT16_MAX__
template <>
struct Element<_Float16> {
  using Stored = _Float16;
  using Wide = float;
  static float load(_Float16 value) { return static_cast<float>(value); }
  static _Float16 store(float value) { return static_cast<_Float16>(value); }
};
#endif

// An operator combines two values; `in` prepares an input, `out` finishes the result.
struct Plain {
  template <typename T>
  static T in(T value) {
    return value;
  }
  template <typename T>
  static T out(T value) {
    return value;
  }
};
struct Sum : Plain {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (static_cast<T>(0.5) == T(0)) {  // integers wrap around instead of being undefined
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
};
struct Max : Plain {
  template <typename T>
  static T combine(T a, T b) {
    return (a > b) | (a != a) ? a : b;
  }
};
struct Min : Plain {
  template <typename T>
  static T combine(T a, T b) {
    return (a < b) | (a != a) ? a : b;
  }
};
struct Average : Sum {
  double ranks;
  template <typename T>
  T out(T value) const {
    return value / static_cast<T>(ranks);
  }
};
struct ScaledSum : Sum {
  double factor;
  template <typename T>
  T in(T value) const {
    return value * static_cast<T>(factor);
  }
};

// Outputs may be inputs, element for element: that is the only way in which they overlap.
template <typename T, typename Op>
void reduce_typed(void* const* outputs, int64_t output_count, const void* const* inputs, int64_t input_count,
                  int64_t count, Op op) {
  using E = Element<T>;
  using Stored = typename E::Stored;
  if (input_count == 2 && output_count == 2) {  // one pass: two ranks, in place
    auto* x = static_cast<Stored*>(outputs[0]);
    auto* y = static_cast<Stored*>(outputs[1]);
    const auto* a = static_cast<const Stored*>(inputs[0]);
    const auto* b = static_cast<const Stored*>(inputs[1]);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const Stored value = E::store(op.out(op.combine(op.in(E::load(a[i])), op.in(E::load(b[i])))));
      x[i] = value;
      y[i] = value;
    }
    return;
  }
  if (input_count == 2 && output_count == 1) {
    auto* x = static_cast<Stored*>(outputs[0]);
    const auto* a = static_cast<const Stored*>(inputs[0]);
    const auto* b = static_cast<const Stored*>(inputs[1]);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) x[i] = E::store(op.out(op.combine(op.in(E::load(a[i])), op.in(E::load(b[i])))));
    return;
  }
  constexpr int64_t block = 512;  // the partial result stays in the first cache
  alignas(64) typename E::Wide partial[block];
  for (int64_t start = 0; start < count; start += block) {
    const int64_t length = count - start < block ? count - start : block;
    const Stored* a = static_cast<const Stored*>(inputs[0]) + start;
    const Stored* b = static_cast<const Stored*>(inputs[input_count > 1 ? 1 : 0]) + start;
    if (input_count == 1) {
      for (int64_t i = 0; i < length; ++i) partial[i] = op.in(E::load(a[i]));
    } else {
      for (int64_t i = 0; i < length; ++i) partial[i] = op.combine(op.in(E::load(a[i])), op.in(E::load(b[i])));
    }
    for (int64_t r = 2; r < input_count; ++r) {
      const Stored* next = static_cast<const Stored*>(inputs[r]) + start;
      for (int64_t i = 0; i < length; ++i) partial[i] = op.combine(partial[i], op.in(E::load(next[i])));
    }
    for (int64_t r = 0; r < output_count; ++r) {
      Stored* output = static_cast<Stored*>(outputs[r]) + start;
      for (int64_t i = 0; i < length; ++i) output[i] = E::store(op.out(partial[i]));
    }
  }
}

template <typename T>
void reduce_op(void* const* outputs, int64_t output_count, const void* const* inputs, int64_t input_count, int64_t count,
               Reduction how) {
  constexpr bool floating = static_cast<typename Element<T>::Wide>(0.5) != typename Element<T>::Wide(0);
  const auto with = [&](auto op) { reduce_typed<T>(outputs, output_count, inputs, input_count, count, op); };
  switch (how.op) {
    case ReduceOp::sum:
      if constexpr (floating) {
        if (how.factor != 1) return with(ScaledSum{{}, how.factor});
      }
      return with(Sum{});
    case ReduceOp::max:
      return with(Max{});
    case ReduceOp::min:
      return with(Min{});
    case ReduceOp::avg:
      if constexpr (floating) with(Average{{}, static_cast<double>(input_count)});
      return;
  }
}

template <typename T>
void narrow_to(void* output, const float* input, int64_t count) {
  auto* to = static_cast<typename Element<T>::Stored*>(output);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = Element<T>::store(input[i]);
}

void narrow_any(void* output, DType to, const float* input, int64_t count) {
#ifdef __FLT16_MAX__
  if (to == DType::f16) return narrow_to<_Float16>(output, input, count);
#endif
  narrow_to<BFloat16>(output, input, count);
}

void reduce_any(void* const* outputs, int64_t output_count, const void* const* inputs, int64_t input_count,
                         int64_t count, DType dtype, Reduction how) {
  switch (dtype) {
    case DType::f32:
      return reduce_op<float>(outputs, output_count, inputs, input_count, count, how);
    case DType::f64:
      return reduce_op<double>(outputs, output_count, inputs, input_count, count, how);
    case DType::bf16:
      return reduce_op<BFloat16>(outputs, output_count, inputs, input_count, count, how);
    case DType::f16:
#ifdef __FLT16_MAX__
      return reduce_op<_Float16>(outputs, output_count, inputs, input_count, count, how);
#else
#error "this compiler has no _Float16"
#endif
    case DType::i32:
      return reduce_op<int32_t>(outputs, output_count, inputs, input_count, count, how);
    case DType::i64:
      return reduce_op<int64_t>(outputs, output_count, inputs, input_count, count, how);
    case DType::u8:
      return reduce_op<uint8_t>(outputs, output_count, inputs, input_count, count, how);
  }
}

}  // namespace

const ReduceKernels TRIREME_REDUCE_NAME = {reduce_any, narrow_any};

}  // namespace trireme::comm
