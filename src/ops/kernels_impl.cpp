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
      for (int64_t i = 0; i < cols; ++i) store(h[i], load(x[i]) + load(delta[i]));
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
    for (int64_t i = 0; i < cols; ++i) store(y[i], load(source[i]) * scale * load(weight[i]));
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
    for (int64_t i = 0; i < cols; ++i) {
      const C value = load(h[i]), upstream = load(dy[i]);
      dw[i] += upstream * value * scale;
      C gradient = upstream * load(weight[i]) * scale - value * pull;
      if (dh != nullptr) gradient += load(dh[i]);
      store(dx[i], gradient);
    }
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
      for (int64_t i = 0; i < cols; ++i) store(h[i], load(x[i]) + load(delta[i]));
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
    for (int64_t i = 0; i < cols; ++i)
      store(y[i], (load(source[i]) - center) * scale * load(weight[i]) + load(bias[i]));
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
    for (int64_t i = 0; i < cols; ++i) {
      const C normed = (load(h[i]) - center) * scale, upstream = load(dy[i]);
      dw[i] += upstream * normed;
      db[i] += upstream;
      C gradient = scale * (upstream * load(weight[i]) - shift - normed * pull);
      if (dh != nullptr) gradient += load(dh[i]);
      store(dx[i], gradient);
    }
    if (dh != nullptr) dh += cols;
  }
}

// tanh(u) = 1 - 2 / (1 + exp(2u)); the double goes to the C library, which has no cancellation near 0.
inline float hyperbolic_tangent(float u) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * u)); }
inline double hyperbolic_tangent(double u) { return tanh(u); }

constexpr double kGeluScale = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

template <typename T>
void gelu_forward(int64_t count, const T* __restrict x, T* __restrict y) {
  using C = Compute<T>;
  for (int64_t i = 0; i < count; ++i) {
    const C value = load(x[i]);
    const C inner = static_cast<C>(kGeluScale) * (value + static_cast<C>(kGeluCubic) * value * value * value);
    store(y[i], C{0.5} * value * (C{1} + hyperbolic_tangent(inner)));
  }
}

template <typename T>
void gelu_backward(int64_t count, const T* __restrict x, const T* __restrict dy, T* __restrict dx) {
  using C = Compute<T>;
  for (int64_t i = 0; i < count; ++i) {
    const C value = load(x[i]), square = value * value;
    const C inner = static_cast<C>(kGeluScale) * (value + static_cast<C>(kGeluCubic) * square * value);
    const C slope = static_cast<C>(kGeluScale) * (C{1} + C{3} * static_cast<C>(kGeluCubic) * square);
    const C bend = hyperbolic_tangent(inner);
    store(dx[i], load(dy[i]) * C{0.5} * (C{1} + bend + value * (C{1} - bend * bend) * slope));
  }
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

template <typename T>
void dropout(int64_t count, const T* __restrict x, T* __restrict y, uint64_t key, uint64_t first, uint32_t threshold,
             Compute<T> scale) {
  using C = Compute<T>;
  uint32_t words[4 * kBlocks];
  for (int64_t done = 0; done < count;) {
    const uint64_t at = first + static_cast<uint64_t>(done);
    const int64_t skip = static_cast<int64_t>(at % 4), room = 4 * kBlocks - skip;
    const int64_t take = count - done < room ? count - done : room;
    philox_words(key, at / 4, words);
    for (int64_t i = 0; i < take; ++i)
      store(y[done + i], words[skip + i] >= threshold ? load(x[done + i]) * scale : C{0});
    done += take;
  }
}

template <typename T>
void swiglu_forward(int64_t rows, int64_t cols, const T* __restrict gate_up, T* __restrict y) {
  using C = Compute<T>;
  for (int64_t row = 0; row < rows; ++row, gate_up += 2 * cols, y += cols) {
    for (int64_t i = 0; i < cols; ++i) {
      const C gate = load(gate_up[i]);
      store(y[i], gate / (C{1} + exponential(-gate)) * load(gate_up[cols + i]));
    }
  }
}

template <typename T>
void swiglu_backward(int64_t rows, int64_t cols, const T* __restrict gate_up, const T* __restrict dy,
                     T* __restrict dgate_up) {
  using C = Compute<T>;
  for (int64_t row = 0; row < rows; ++row, gate_up += 2 * cols, dgate_up += 2 * cols, dy += cols) {
    for (int64_t i = 0; i < cols; ++i) {
      const C gate = load(gate_up[i]), up = load(gate_up[cols + i]), upstream = load(dy[i]);
      const C sigmoid = C{1} / (C{1} + exponential(-gate));
      store(dgate_up[i], upstream * up * sigmoid * (C{1} + gate * (C{1} - sigmoid)));
      store(dgate_up[cols + i], upstream * gate * sigmoid);
    }
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
      for (int64_t i = 0; i < half; ++i) {
        const C a = load(low[i]), b = load(high[i]), turn = sign * s[i];
        store(low[i], a * c[i] - b * turn);
        store(high[i], b * c[i] + a * turn);
      }
    }
  }
}

template <typename T>
void gather_qkv_gradient(int64_t heads, int64_t kv_heads, int64_t head_dim, const T* __restrict dq, int64_t dq_stride,
                         const T* __restrict dk, int64_t dk_stride, const T* __restrict dv, int64_t dv_stride,
                         T* __restrict out) {
  using C = Compute<T>;
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
      for (int64_t i = 0; i < head_dim; ++i) {
        C sum = load(first[i]);
        for (int64_t member = 1; member < group; ++member) sum += load(first[member * stride + i]);
        store(out[i], sum);
      }
    }
  }
}

template <typename C>
struct IntegerOf {
  using type = int32_t;
};
template <>
struct IntegerOf<double> {
  using type = int64_t;
};

template <typename C>
struct Range {
  C highest;
  bool finite;  // all of them
};

// Compares the numbers by their bits: of a maximum of integers g++ makes one instruction, of one of numbers, which may
// be NaN, a branch.
template <typename T>
Range<Compute<T>> range_of(int64_t count, const T* x) {
  using C = Compute<T>;
  using I = typename IntegerOf<C>::type;
  constexpr I kSize = sizeof(I) == 4 ? static_cast<I>(INT32_MAX) : static_cast<I>(INT64_MAX);
  const auto ordered = [](auto bits) { return bits ^ ((bits >> (8 * sizeof(I) - 1)) & kSize); };  // its own inverse
  const auto bits_of = [](C value) {
    I bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
  };
  Lanes<I> highest = Lanes<I>{} + ordered(bits_of(static_cast<C>(-INFINITY))), largest = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Lanes<I> bits = reinterpret_cast<Lanes<I>>(load(x, Block{i})), key = ordered(bits), size = bits & kSize;
    highest = key > highest ? key : highest;
    largest = size > largest ? size : largest;
  }
  for (int64_t lane = 0; i + lane < count; ++lane) {
    const I bits = bits_of(load(x, i + lane)), key = ordered(bits), size = bits & kSize;
    highest[lane] = key > highest[lane] ? key : highest[lane];
    largest[lane] = size > largest[lane] ? size : largest[lane];
  }
  I most = highest[0], size = largest[0];
  for (int64_t lane = 1; lane < kLanes; ++lane) {
    most = highest[lane] > most ? highest[lane] : most;
    size = largest[lane] > size ? largest[lane] : size;
  }
  most = ordered(most);
  Range<C> range;
  memcpy(&range.highest, &most, sizeof most);
  range.finite = size < bits_of(static_cast<C>(INFINITY));
  return range;
}

template <typename T>
void soft_cap(int64_t count, Compute<T> cap, T* __restrict x) {
  const Compute<T> inverse = Compute<T>{1} / cap;
  for (int64_t i = 0; i < count; ++i) store(x[i], cap * hyperbolic_tangent(load(x[i]) * inverse));
}

template <typename T>
void cross_entropy(int64_t rows, int64_t cols, T* __restrict logits, const int64_t* __restrict labels, Compute<T> scale,
                   Compute<T> z_loss, Compute<T> cap, bool gradient, Compute<T>* __restrict loss,
                   Compute<T>* __restrict z) {
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
    const bool finite = cap == 0 || range_of(cols, logits).finite;
    if (cap > 0) soft_cap(cols, cap, logits);
    const Range<C> range = range_of(cols, logits);
    const C highest = range.highest;
    // exponential() would hide what is not finite.
    const C poison = finite && range.finite ? C{0} : static_cast<C>(NAN);
    const C sum = lane_sum<C>(cols, [&](auto j) { return exponential(load(logits, j) - highest); });
    const C at_label = load(logits[label]);
    // of cap tanh(x / cap) by x
    const C inverse_cap = cap > 0 ? C{1} / cap : C{0};
    const auto slope = [&](C y) { return C{1} - y * inverse_cap * (y * inverse_cap); };
    const C log_sum = static_cast<C>(log(sum)) + highest;
    loss[row] = log_sum - at_label + poison;
    if (z != nullptr) z[row] = log_sum * log_sum + poison;
    if (!gradient) continue;
    // d log_sum / d logits is the softmax, so z only makes its share larger.
    const C share = C{1} + C{2} * z_loss * log_sum;
    const C inverse = scale * share / sum;
    if (cap > 0) {
      for (int64_t j = 0; j < cols; ++j) {
        const C y = load(logits[j]);
        store(logits[j], exponential(y - highest) * inverse * slope(y) + poison);
      }
    } else {
      for (int64_t j = 0; j < cols; ++j) store(logits[j], exponential(load(logits[j]) - highest) * inverse + poison);
    }
    store(logits[label], (exponential(at_label - highest) / sum * share - C{1}) * scale * slope(at_label) + poison);
  }
}

template <typename T>
void adamw(int64_t count, Compute<T>* __restrict weight, Compute<T>* __restrict exp_avg,
           Compute<T>* __restrict exp_avg_sq, const Compute<T>* __restrict gradient, T* __restrict copy, double lr,
           double beta1, double beta2, double eps, double decay, double bias1, double bias2, double gradient_scale) {
  using C = Compute<T>;
  const C scale = static_cast<C>(gradient_scale), keep = static_cast<C>(1 - lr * decay), b1 = static_cast<C>(beta1),
          b2 = static_cast<C>(beta2), n1 = static_cast<C>(1 - beta1), n2 = static_cast<C>(1 - beta2),
          step = static_cast<C>(lr / bias1), root = static_cast<C>(sqrt(bias2)), e = static_cast<C>(eps);
  for (int64_t i = 0; i < count; ++i) {
    const C g = gradient[i] * scale;
    const C m = b1 * exp_avg[i] + n1 * g;
    const C v = b2 * exp_avg_sq[i] + n2 * g * g;
    const C w = weight[i] * keep - step * m / (sqrt(v) / root + e);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    weight[i] = w;
    if (copy != nullptr) store(copy[i], w);
  }
}

template <typename T>
void add_to(int64_t count, const T* __restrict source, Compute<T>* __restrict target, bool accumulate) {
  if (accumulate)
    for (int64_t i = 0; i < count; ++i) target[i] += load(source[i]);
  else
    for (int64_t i = 0; i < count; ++i) target[i] = load(source[i]);
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
          &dropout<T>,
          &swiglu_forward<T>,
          &swiglu_backward<T>,
          &rotate<T>,
          &gather_qkv_gradient<T>,
          &soft_cap<T>,
          &cross_entropy<T>,
          &adamw<T>,
          &add_to<T>,
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
