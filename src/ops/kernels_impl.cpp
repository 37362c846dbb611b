// Compiled once per instruction-set level (TRIREME_KERNEL_LEVEL); see lanes.h for what that asks of the code.
#include "ops/lanes.h"

namespace trireme::ops {
namespace TRIREME_KERNEL_LEVEL {
namespace {

// No two arguments of a kernel overlap (__restrict), which is what lets the compiler vectorise without asking.

template <typename T>
void rms_norm_forward(int64_t rows, int64_t cols, const T* __restrict x, const T* __restrict delta,
                      const T* __restrict weight, Compute<T> eps, T* __restrict h, T* __restrict y,
                      Compute<T>* __restrict rstd) {
  using C = Compute<T>;
  for (int64_t row = 0; row < rows; ++row, x += cols, y += cols) {
    const T* source = x;
    if (delta != nullptr) {
      each(cols, [&](auto i) { put(h, i, load(x, i) + load(delta, i)); });
      source = h;
      h += cols;
      delta += cols;
    }
    const C squares = lane_sum<C>(cols, [&](auto i) {
      const auto value = load(source, i);
      return value * value;
    });
    const C scale = C{1} / sqrt(squares / static_cast<C>(cols) + eps);
    rstd[row] = scale;
    each(cols, [&](auto i) { put(y, i, load(source, i) * scale * load(weight, i)); });
  }
}

template <typename T>
void rms_norm_backward(int64_t rows, int64_t cols, const T* __restrict dy, const T* __restrict h,
                       const T* __restrict weight, const Compute<T>* __restrict rstd, const T* __restrict dh,
                       T* __restrict dx, Compute<T>* __restrict dw) {
  using C = Compute<T>;
  for (int64_t row = 0; row < rows; ++row, dy += cols, h += cols, dx += cols) {
    const C scale = rstd[row];
    const C dot = lane_sum<C>(cols, [&](auto i) { return load(dy, i) * load(weight, i) * load(h, i); });
    const C pull = dot * scale * scale * scale / static_cast<C>(cols);
    each(cols, [&](auto i) {
      const auto value = load(h, i), upstream = load(dy, i);
      put(dw, i, load(dw, i) + upstream * value * scale);
      auto gradient = upstream * load(weight, i) * scale - value * pull;
      if (dh != nullptr) gradient += load(dh, i);
      put(dx, i, gradient);
    });
    if (dh != nullptr) dh += cols;
  }
}

template <typename T>
void layer_norm_forward(int64_t rows, int64_t cols, const T* __restrict x, const T* __restrict delta,
                        const T* __restrict weight, const T* __restrict bias, Compute<T> eps, T* __restrict h,
                        T* __restrict y, Compute<T>* __restrict mean, Compute<T>* __restrict rstd) {
  using C = Compute<T>;
  for (int64_t row = 0; row < rows; ++row, x += cols, y += cols) {
    const T* source = x;
    if (delta != nullptr) {
      each(cols, [&](auto i) { put(h, i, load(x, i) + load(delta, i)); });
      source = h;
      h += cols;
      delta += cols;
    }
    const C center = lane_sum<C>(cols, [&](auto i) { return load(source, i); }) / static_cast<C>(cols);
    const C squares = lane_sum<C>(cols, [&](auto i) {
      const auto value = load(source, i) - center;
      return value * value;
    });
    const C scale = C{1} / sqrt(squares / static_cast<C>(cols) + eps);
    mean[row] = center;
    rstd[row] = scale;
    each(cols, [&](auto i) { put(y, i, (load(source, i) - center) * scale * load(weight, i) + load(bias, i)); });
  }
}

template <typename T>
void layer_norm_backward(int64_t rows, int64_t cols, const T* __restrict dy, const T* __restrict h,
                         const T* __restrict weight, const Compute<T>* __restrict mean,
                         const Compute<T>* __restrict rstd, const T* __restrict dh, T* __restrict dx,
                         Compute<T>* __restrict dw, Compute<T>* __restrict db) {
  using C = Compute<T>;
  for (int64_t row = 0; row < rows; ++row, dy += cols, h += cols, dx += cols) {
    const C center = mean[row], scale = rstd[row], count = static_cast<C>(cols);
    const C shift = lane_sum<C>(cols, [&](auto i) { return load(dy, i) * load(weight, i); }) / count;
    const C pull =
        lane_sum<C>(cols, [&](auto i) { return load(dy, i) * load(weight, i) * (load(h, i) - center) * scale; }) /
        count;
    each(cols, [&](auto i) {
      const auto normed = (load(h, i) - center) * scale, upstream = load(dy, i);
      put(dw, i, load(dw, i) + upstream * normed);
      put(db, i, load(db, i) + upstream);
      auto gradient = scale * (upstream * load(weight, i) - shift - normed * pull);
      if (dh != nullptr) gradient += load(dh, i);
      put(dx, i, gradient);
    });
    if (dh != nullptr) dh += cols;
  }
}

// tanh(u) = 1 - 2 / (1 + exp(2u)); the double goes to the C library, which has no cancellation near 0.
inline float hyperbolic_tangent(float u) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * u)); }
inline Lanes<float> hyperbolic_tangent(Lanes<float> u) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * u)); }
inline double hyperbolic_tangent(double u) { return tanh(u); }
inline Lanes<double> hyperbolic_tangent(Lanes<double> u) {
  for (int64_t lane = 0; lane < kLanes; ++lane) u[lane] = tanh(u[lane]);
  return u;
}

constexpr double kGeluScale = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

template <typename T>
void gelu_forward(int64_t count, const T* __restrict x, T* __restrict y) {
  using C = Compute<T>;
  each(count, [&](auto i) {
    const auto value = load(x, i);
    const auto inner = static_cast<C>(kGeluScale) * (value + static_cast<C>(kGeluCubic) * value * value * value);
    put(y, i, C{0.5} * value * (C{1} + hyperbolic_tangent(inner)));
  });
}

template <typename T>
void gelu_backward(int64_t count, const T* __restrict x, const T* __restrict dy, T* __restrict dx) {
  using C = Compute<T>;
  each(count, [&](auto i) {
    const auto value = load(x, i), square = value * value;
    const auto inner = static_cast<C>(kGeluScale) * (value + static_cast<C>(kGeluCubic) * square * value);
    const auto slope = static_cast<C>(kGeluScale) * (C{1} + C{3} * static_cast<C>(kGeluCubic) * square);
    const auto bend = hyperbolic_tangent(inner);
    put(dx, i, load(dy, i) * C{0.5} * (C{1} + bend + value * (C{1} - bend * bend) * slope));
  });
}

template <typename T>
void add_rows(int64_t rows, int64_t cols, const T* __restrict x, Compute<T>* __restrict sums) {
  for (int64_t row = 0; row < rows; ++row, x += cols)
    for (int64_t i = 0; i < cols; ++i) sums[i] += load(x[i]);
}

// Philox4x32-10 of kBlocks consecutive blocks: words[4 * block + word], the values of random::philox (base/random.h)
// with a zero upper counter. The rounds stand one after another within a loop over blocks: of a loop over rounds around
// one over blocks g++ unrolls the inner one, and then multiplies number by number.
constexpr int64_t kBlocks = 4 * kLanes;

template <int rounds>
inline __attribute__((always_inline)) void philox_rounds(uint32_t& x0, uint32_t& x1, uint32_t& x2, uint32_t& x3,
                                                         uint32_t k0, uint32_t k1) {
  const uint64_t a = uint64_t{0xD2511F53} * x0, b = uint64_t{0xCD9E8D57} * x2;
  x0 = static_cast<uint32_t>(b >> 32) ^ x1 ^ k0;
  x1 = static_cast<uint32_t>(b);
  x2 = static_cast<uint32_t>(a >> 32) ^ x3 ^ k1;
  x3 = static_cast<uint32_t>(a);
  if constexpr (rounds > 1) philox_rounds<rounds - 1>(x0, x1, x2, x3, k0 + 0x9E3779B9, k1 + 0xBB67AE85);
}

inline void philox_words(uint64_t key, uint64_t first_block, uint32_t* __restrict words) {
  const uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int64_t i = 0; i < kBlocks; ++i) {
    const uint64_t block = first_block + static_cast<uint64_t>(i);
    uint32_t x0 = static_cast<uint32_t>(block), x1 = static_cast<uint32_t>(block >> 32), x2 = 0, x3 = 0;
    philox_rounds<10>(x0, x1, x2, x3, k0, k1);
    words[4 * i] = x0;
    words[4 * i + 1] = x1;
    words[4 * i + 2] = x2;
    words[4 * i + 3] = x3;
  }
}

static_assert(kMaskBits % kLanes == 0);

// x where the lane's bit is set, from bit `first` of `kept` on, else 0.
inline Words bits_of(uint32_t kept, int64_t first) {
  constexpr Words kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return ((Words{} + kept) >> (kLane + static_cast<uint32_t>(first))) & 1;
}
inline Lanes<float> where_set(Words bits, Lanes<float> x) { return bits != 0 ? x : Lanes<float>{}; }
inline Lanes<double> where_set(Words bits, Lanes<double> x) {
  return __builtin_convertvector(bits, Lanes<uint64_t>) != 0 ? x : Lanes<double>{};
}

// Of up to 32 elements, those whose bit is set, times `scale`; the others become 0.
template <typename T>
inline void put_kept(int64_t count, const T* __restrict x, uint32_t kept, Compute<T> scale, T* __restrict y) {
  using C = Compute<T>;
  if (count == kMaskBits) {
    for (int64_t i = 0; i < kMaskBits; i += kLanes)
      put(y, Block{i}, where_set(bits_of(kept, i), load(x, Block{i}) * scale));
  } else {
    for (int64_t i = 0; i < count; ++i) store(y[i], ((kept >> i) & 1) != 0 ? load(x[i]) * scale : C{0});
  }
}

// Bit i: words[i] >= threshold.
inline uint32_t at_least(const uint32_t* __restrict words, int64_t count, uint32_t threshold) {
  uint32_t bits = 0;
#ifdef __AVX512F__
  if (count == kMaskBits) {
    const __m512i limit = _mm512_set1_epi32(static_cast<int>(threshold));
    const uint32_t low = _mm512_cmpge_epu32_mask(_mm512_loadu_si512(words), limit),
                   high = _mm512_cmpge_epu32_mask(_mm512_loadu_si512(words + kLanes), limit);
    return low | (high << kLanes);
  }
#endif
  for (int64_t i = 0; i < count; ++i) bits |= uint32_t{words[i] >= threshold} << i;
  return bits;
}

template <typename T>
void dropout_forward(int64_t count, const T* __restrict x, T* __restrict y, uint32_t* __restrict kept, uint64_t key,
                     uint64_t first, uint32_t threshold, Compute<T> scale) {
  uint32_t words[4 * kBlocks];
  for (int64_t done = 0; done < count;) {
    const uint64_t at = first + static_cast<uint64_t>(done);
    const int64_t skip = static_cast<int64_t>(at % 4), room = (4 * kBlocks - skip) / kMaskBits * kMaskBits;
    const int64_t take = count - done < room ? count - done : room;
    philox_words(key, at / 4, words);
    for (int64_t i = 0; i < take; i += kMaskBits) {
      const int64_t here = take - i < kMaskBits ? take - i : kMaskBits;
      const uint32_t bits = at_least(words + skip + i, here, threshold);
      if (kept != nullptr) kept[(done + i) / kMaskBits] = bits;
      put_kept<T>(here, x + done + i, bits, scale, y + done + i);
    }
    done += take;
  }
}

template <typename T>
void dropout_backward(int64_t count, const T* __restrict dy, const uint32_t* __restrict kept, T* __restrict dx,
                      Compute<T> scale) {
  for (int64_t i = 0; i < count; i += kMaskBits)
    put_kept<T>(count - i < kMaskBits ? count - i : kMaskBits, dy + i, kept[i / kMaskBits], scale, dx + i);
}

template <typename T>
void swiglu_forward(int64_t rows, int64_t cols, const T* __restrict gate_up, T* __restrict y) {
  using C = Compute<T>;
  for (int64_t row = 0; row < rows; ++row, gate_up += 2 * cols, y += cols) {
    const T* up = gate_up + cols;
    each(cols, [&](auto i) {
      const auto gate = load(gate_up, i);
      put(y, i, gate / (C{1} + exponential(-gate)) * load(up, i));
    });
  }
}

template <typename T>
void swiglu_backward(int64_t rows, int64_t cols, const T* __restrict gate_up, const T* __restrict dy,
                     T* __restrict dgate_up) {
  using C = Compute<T>;
  for (int64_t row = 0; row < rows; ++row, gate_up += 2 * cols, dgate_up += 2 * cols, dy += cols) {
    const T* ups = gate_up + cols;
    T* dups = dgate_up + cols;
    each(cols, [&](auto i) {
      const auto gate = load(gate_up, i), up = load(ups, i), upstream = load(dy, i);
      const auto sigmoid = C{1} / (C{1} + exponential(-gate));
      put(dgate_up, i, upstream * up * sigmoid * (C{1} + gate * (C{1} - sigmoid)));
      put(dups, i, upstream * gate * sigmoid);
    });
  }
}

template <typename T>
void rotate(int64_t rows, int64_t stride, int64_t heads, int64_t head_dim, T* __restrict x,
            const Compute<T>* __restrict cosine, const Compute<T>* __restrict sine, const int64_t* __restrict position,
            bool inverse) {
  using C = Compute<T>;
  const int64_t half = head_dim / 2;
  const C sign = inverse ? C{-1} : C{1};
  for (int64_t row = 0; row < rows; ++row, x += stride) {
    const C* c = cosine + position[row] * half;
    const C* s = sine + position[row] * half;
    for (int64_t head = 0; head < heads; ++head) {
      T* low = x + head * head_dim;
      T* high = low + half;
      each(half, [&](auto i) {
        const auto a = load(low, i), b = load(high, i), stay = load(c, i), turn = sign * load(s, i);
        put(low, i, a * stay - b * turn);
        put(high, i, b * stay + a * turn);
      });
    }
  }
}

template <typename T>
void gather_qkv_gradient(int64_t heads, int64_t kv_heads, int64_t head_dim, const T* __restrict dq, int64_t dq_stride,
                         const T* __restrict dk, int64_t dk_stride, const T* __restrict dv, int64_t dv_stride,
                         T* __restrict out) {
  for (int64_t head = 0; head < heads; ++head, out += head_dim)
    memcpy(out, dq + head * dq_stride, sizeof(T) * head_dim);
  const int64_t group = heads / kv_heads;
  for (int part = 0; part < 2; ++part) {
    const T* source = part == 0 ? dk : dv;
    const int64_t stride = part == 0 ? dk_stride : dv_stride;
    for (int64_t head = 0; head < kv_heads; ++head, out += head_dim) {
      const T* first = source + head * group * stride;
      if (group == 1) {
        memcpy(out, first, sizeof(T) * head_dim);
        continue;
      }
      each(head_dim, [&](auto i) {
        auto sum = load(first, i);
        for (int64_t member = 1; member < group; ++member) sum += load(first + member * stride, i);
        put(out, i, sum);
      });
    }
  }
}

// As wide as a number of so many bytes.
template <size_t bytes>
struct IntegerOf;
template <>
struct IntegerOf<2> {
  using type = int16_t;
};
template <>
struct IntegerOf<4> {
  using type = int32_t;
};
template <>
struct IntegerOf<8> {
  using type = int64_t;
};

template <typename T>
typename IntegerOf<sizeof(T)>::type bits_of(const T& number) {
  typename IntegerOf<sizeof(T)>::type bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

template <typename C>
struct Range {
  C highest;
  bool finite;  // all of them
};

// Compares the numbers by their bits: of a maximum of integers g++ makes one instruction, of one of numbers, which may
// be NaN, a branch.
template <typename T>
Range<Compute<T>> range_of(int64_t count, const T* x) {
  using I = typename IntegerOf<sizeof(T)>::type;
  typedef I Vector __attribute__((vector_size(64)));
  constexpr int64_t kWidth = sizeof(Vector) / sizeof(I);
  constexpr I kSign = static_cast<I>(I{1} << (8 * sizeof(I) - 1)), kSize = static_cast<I>(~kSign);
  const auto ordered = [](auto bits) {  // its own inverse
    return static_cast<decltype(bits)>(bits ^ ((bits >> (8 * sizeof(I) - 1)) & kSize));
  };
  T infinity;
  store(infinity, static_cast<Compute<T>>(INFINITY));
  Vector highest = Vector{} + ordered(static_cast<I>(bits_of(infinity) | kSign)), largest = {};
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    Vector bits;
    memcpy(&bits, x + i, sizeof bits);
    const Vector key = ordered(bits), size = bits & kSize;
    highest = key > highest ? key : highest;
    largest = size > largest ? size : largest;
  }
  for (int64_t lane = 0; i + lane < count; ++lane) {
    const I bits = bits_of(x[i + lane]), key = ordered(bits), size = static_cast<I>(bits & kSize);
    highest[lane] = key > highest[lane] ? key : highest[lane];
    largest[lane] = size > largest[lane] ? size : largest[lane];
  }
  I most = highest[0], size = largest[0];
  for (int64_t lane = 1; lane < kWidth; ++lane) {
    most = highest[lane] > most ? highest[lane] : most;
    size = largest[lane] > size ? largest[lane] : size;
  }
  most = ordered(most);
  T value;
  memcpy(&value, &most, sizeof most);
  return {load(value), size < bits_of(infinity)};
}

template <typename T>
void soft_cap(int64_t count, Compute<T> cap, T* __restrict x) {
  const Compute<T> inverse = Compute<T>{1} / cap;
  each(count, [&](auto i) { put(x, i, cap * hyperbolic_tangent(load(x, i) * inverse)); });
}

template <typename T>
void cross_entropy(int64_t rows, int64_t cols, T* __restrict logits, const int64_t* __restrict labels, Compute<T> scale,
                   Compute<T> z_loss, Compute<T> cap, bool gradient, Compute<T>* __restrict loss,
                   Compute<T>* __restrict z, Compute<T>* __restrict terms) {
  using C = Compute<T>;
  for (int64_t row = 0; row < rows; ++row, logits += cols) {
    const int64_t label = labels[row];
    if (label < 0) {
      loss[row] = 0;
      if (z != nullptr) z[row] = 0;
      if (gradient) memset(logits, 0, sizeof(T) * cols);
      continue;
    }
    // What is not finite must show before the cap makes it so.
    bool finite = cap == 0 || range_of(cols, logits).finite;
    if (cap > 0) soft_cap(cols, cap, logits);
    const Range<C> range = range_of(cols, logits);
    const C highest = range.highest;
    finite = finite && range.finite;
    if (!finite) {  // exponential() would hide it
      loss[row] = static_cast<C>(NAN);
      if (z != nullptr) z[row] = static_cast<C>(NAN);
      if (gradient)
        for (int64_t j = 0; j < cols; ++j) store(logits[j], static_cast<C>(NAN));
      continue;
    }
    // The next row comes from memory while this one is computed.
    const T* next = row + 1 < rows ? logits + cols : logits;
    const C sum = lane_sum<C>(cols, [&](auto j) {
      prefetch(next, j);
      const auto term = exponential_of_low(load(logits, j) - highest);
      if (gradient) put(terms, j, term);
      return term;
    });
    const C at_label = load(logits[label]);
    // of cap tanh(x / cap) by x
    const C inverse_cap = cap > 0 ? C{1} / cap : C{0};
    const auto slope = [&](auto y) { return C{1} - y * inverse_cap * (y * inverse_cap); };
    const C log_sum = static_cast<C>(log(sum)) + highest;
    loss[row] = log_sum - at_label;
    if (z != nullptr) z[row] = log_sum * log_sum;
    if (!gradient) continue;
    // d log_sum / d logits is the softmax, so z only makes its share larger.
    const C share = C{1} + C{2} * z_loss * log_sum;
    const C inverse = scale * share / sum;
    if (cap > 0) {
      each(cols, [&](auto j) { put(logits, j, load(terms, j) * inverse * slope(load(logits, j))); });
    } else {
      each(cols, [&](auto j) { put(logits, j, load(terms, j) * inverse); });
    }
    store(logits[label], (terms[label] / sum * share - C{1}) * scale * slope(at_label));
  }
}

template <typename T>
void adamw(int64_t count, Compute<T>* __restrict weight, Compute<T>* __restrict exp_avg,
           Compute<T>* __restrict exp_avg_sq, const Compute<T>* __restrict gradient, T* __restrict copy, double lr,
           double beta1, double beta2, double eps, double decay, double bias1, double bias2, double gradient_scale) {
  using C = Compute<T>;
  const C scale = static_cast<C>(gradient_scale), keep = static_cast<C>(1 - lr * decay), b1 = static_cast<C>(beta1),
          b2 = static_cast<C>(beta2), n1 = static_cast<C>(1 - beta1), n2 = static_cast<C>(1 - beta2),
          step = static_cast<C>(lr / bias1), root = static_cast<C>(1 / sqrt(bias2)), e = static_cast<C>(eps);
  each(count, [&](auto i) {
    const auto g = load(gradient, i) * scale;
    const auto m = b1 * load(exp_avg, i) + n1 * g;
    const auto v = b2 * load(exp_avg_sq, i) + n2 * g * g;
    const auto w = load(weight, i) * keep - step * m / (square_root(v) * root + e);
    put(exp_avg, i, m);
    put(exp_avg_sq, i, v);
    put(weight, i, w);
    if (copy != nullptr) put(copy, i, w);
  });
}

template <typename T>
void add_to(int64_t count, const T* __restrict source, Compute<T>* __restrict target, bool accumulate) {
  if (accumulate)
    for (int64_t i = 0; i < count; ++i) target[i] += load(source[i]);
  else
    for (int64_t i = 0; i < count; ++i) target[i] = load(source[i]);
}

template <typename T>
void round_to(int64_t count, const Compute<T>* __restrict source, T* __restrict target) {
  for (int64_t i = 0; i < count; ++i) store(target[i], source[i]);
}

template <typename C>
double sum_of_squares(int64_t count, const C* __restrict values) {
  return lane_sum<double>(count, [&](auto i) {
    const auto value = widened(load(values, i));
    return value * value;
  });
}

template <typename T>
constexpr Kernels<T> make_table() {
  return {&rms_norm_forward<T>,
          &rms_norm_backward<T>,
          &layer_norm_forward<T>,
          &layer_norm_backward<T>,
          &gelu_forward<T>,
          &gelu_backward<T>,
          &add_rows<T>,
          &dropout_forward<T>,
          &dropout_backward<T>,
          &swiglu_forward<T>,
          &swiglu_backward<T>,
          &rotate<T>,
          &gather_qkv_gradient<T>,
          &soft_cap<T>,
          &cross_entropy<T>,
          &adamw<T>,
          &add_to<T>,
          &round_to<T>,
          &sum_of_squares<Compute<T>>};
}

constexpr Kernels<Bf16> kBf16 = make_table<Bf16>();
constexpr Kernels<F16> kF16 = make_table<F16>();
constexpr Kernels<float> kFloat = make_table<float>();
constexpr Kernels<double> kDouble = make_table<double>();

}  // namespace

// Declared in kernels.cpp; a header of their own would have to name every level.
const Kernels<Bf16>& bf16_kernels();
const Kernels<F16>& f16_kernels();
const Kernels<float>& float_kernels();
const Kernels<double>& double_kernels();
const Kernels<Bf16>& bf16_kernels() { return kBf16; }
const Kernels<F16>& f16_kernels() { return kF16; }
const Kernels<float>& float_kernels() { return kFloat; }
const Kernels<double>& double_kernels() { return kDouble; }

}  // namespace TRIREME_KERNEL_LEVEL
}  // namespace trireme::ops
