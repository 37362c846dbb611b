// CPU kernels of the fused operations, on raw rows and without torch or threads.
//
// One source (kernels_impl.cpp) is compiled per instruction-set level; kernels<T>() gives the table of cpu_level(). A
// kernel works on a range of rows, so
// callers decide the split over threads; no kernel's result depends on that split.
//
// T is the element type of activations: Bf16, F16, float or double. Arithmetic is in Compute<T>: double for double,
// float for the others. Sums run over 16 interleaved lanes that are added in a fixed order.
#pragma once

#include <cstdint>

namespace trireme::ops {

/// A bfloat16 as its 16 bits (the upper half of a float).
struct Bf16 {
  uint16_t bits;
};

/// An IEEE half-precision number as its 16 bits.
struct F16 {
  uint16_t bits;
};

template <typename T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<F16> {
  using type = float;
};
template <>
struct ComputeOf<Bf16> {
  using type = float;
};
template <typename T>
using Compute = typename ComputeOf<T>::type;

/// Elements of a word of dropout's mask.
inline constexpr int64_t kMaskBits = 32;

template <typename T>
struct Kernels {
  using C = Compute<T>;

  /// h = x + delta (delta may be null: h = x, and `h` is not written), rstd = 1/sqrt(mean(h^2) + eps), y = h * rstd *
  /// w. x, delta, h, y [rows, cols]; w [cols]; rstd [rows].
  void (*rms_norm_forward)(int64_t rows, int64_t cols, const T* x, const T* delta, const T* weight, C eps, T* h, T* y,
                           C* rstd);
  /// dx = dh + gradient of the norm at h (dh may be null); dw [cols] += the rows' share of the weight gradient.
  void (*rms_norm_backward)(int64_t rows, int64_t cols, const T* dy, const T* h, const T* weight, const C* rstd,
                            const T* dh, T* dx, C* dw);

  /// The same for layer normalisation: y = (h - mean) * rstd * weight + bias, rstd = 1/sqrt(variance + eps); mean
  /// [rows], bias [cols].
  void (*layer_norm_forward)(int64_t rows, int64_t cols, const T* x, const T* delta, const T* weight, const T* bias,
                             C eps, T* h, T* y, C* mean, C* rstd);
  /// As rms_norm_backward; db [cols] += the rows' share of the bias gradient.
  void (*layer_norm_backward)(int64_t rows, int64_t cols, const T* dy, const T* h, const T* weight, const C* mean,
                              const C* rstd, const T* dh, T* dx, C* dw, C* db);

  /// y = gelu(x) by the tanh formula (Hendrycks and Gimpel, arXiv:1606.08415, section 2).
  void (*gelu_forward)(int64_t count, const T* x, T* y);
  void (*gelu_backward)(int64_t count, const T* x, const T* dy, T* dx);

  /// sums [cols] += the rows of x [rows, cols], one after another.
  void (*add_rows)(int64_t rows, int64_t cols, const T* x, C* sums);

  /// y = x / (1 - probability) where the random word of an element is at or above `threshold` (probability * 2^32),
  /// else 0. Element i of x draws word (first + i) % 4 of Philox4x32-10 block (first + i) / 4 under `key`. Bit i % 32
  /// of kept[i / 32] is set where it stays; bits beyond `count` are 0. `kept` may be null.
  void (*dropout_forward)(int64_t count, const T* x, T* y, uint32_t* kept, uint64_t key, uint64_t first,
                          uint32_t threshold, C scale);
  void (*dropout_backward)(int64_t count, const T* dy, const uint32_t* kept, T* dx, C scale);

  /// gate_up [rows, 2*cols] (gate first) -> y [rows, cols] = silu(gate) * up.
  void (*swiglu_forward)(int64_t rows, int64_t cols, const T* gate_up, T* y);
  void (*swiglu_backward)(int64_t rows, int64_t cols, const T* gate_up, const T* dy, T* dgate_up);

  /// Rotates the first `heads` heads of each row in place: pairs (i, i + head_dim/2), the layout of Hugging Face Llama.
  /// x: `rows` rows of `stride` elements; cosine, sine [.., head_dim/2]; row r uses table row position[r].
  void (*rotate)(int64_t rows, int64_t stride, int64_t heads, int64_t head_dim, T* x, const C* cosine, const C* sine,
                 const int64_t* position, bool inverse);

  /// One token's gradient of the fused q, k, v row: sums the gradients of the query heads that shared a key/value head.
  /// dk, dv: `heads` heads each (strides in elements between heads); out: (heads + 2*kv_heads) * head_dim.
  void (*gather_qkv_gradient)(int64_t heads, int64_t kv_heads, int64_t head_dim, const T* dq, int64_t dq_stride,
                              const T* dk, int64_t dk_stride, const T* dv, int64_t dv_stride, T* out);

  /// x = cap * tanh(x / cap) (Gemma 2, arXiv:2408.00118, section 2).
  void (*soft_cap)(int64_t count, C cap, T* x);

  /// Softmax cross-entropy of rows of logits [rows, cols]: loss[r] = log(sum exp(logits)) - logits[label], 0 where the
  /// label is negative; z[r] = log(sum exp(logits))^2 (z may be null). With cap > 0 logits are soft-capped first. With
  /// `gradient`, logits become d (loss + z_loss * z) / d logits * scale, and terms [cols] is scratch.
  void (*cross_entropy)(int64_t rows, int64_t cols, T* logits, const int64_t* labels, C scale, C z_loss, C cap,
                        bool gradient, C* loss, C* z, C* terms);

  /// AdamW (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2, as torch.optim.AdamW computes it) over `count`
  /// elements: g = gradient * gradient_scale; w *= 1 - lr*decay; m, v updated; w -= lr/bias1 * m / (sqrt(v/bias2) +
  /// eps); copy = T(w) when copy is not null.
  void (*adamw)(int64_t count, C* weight, C* exp_avg, C* exp_avg_sq, const C* gradient, T* copy, double lr,
                double beta1, double beta2, double eps, double decay, double bias1, double bias2,
                double gradient_scale);

  /// target = source, or target += source.
  void (*add_to)(int64_t count, const T* source, C* target, bool accumulate);
  /// target = T(source).
  void (*round_to)(int64_t count, const C* source, T* target);
  /// Sum of squares in double.
  double (*sum_of_squares)(int64_t count, const C* values);
};

template <typename T>
const Kernels<T>& kernels();

}  // namespace trireme::ops
