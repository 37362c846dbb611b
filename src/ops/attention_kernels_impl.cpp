// Compiled for one instruction-set level, avx512_bf16; see lanes.h for what that asks of the code.
#include "ops/attention_kernels.h"
#include "ops/lanes.h"

namespace trireme::ops {
namespace TRIREME_KERNEL_LEVEL {
namespace {

inline Words load_words(const void* from) {
  Words words;
  memcpy(&words, from, sizeof words);
  return words;
}
inline void store_words(void* to, Words words) { memcpy(to, &words, sizeof words); }

inline void store_halves(Bf16* to, Words bits) {
  const Halves narrow = __builtin_convertvector(bits, Halves);
  memcpy(to, &narrow, sizeof narrow);
}

// Lane l of row i changes places with lane i of row l, a bit of the two numbers at a time.
struct Exchange {
  uint32_t low[4][kLanes], high[4][kLanes];
};
constexpr Exchange make_exchange() {
  Exchange masks{};
  for (int bit = 0; bit < 4; ++bit) {
    const uint32_t step = 1U << bit;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      masks.low[bit][lane] = (lane & step) != 0 ? kLanes + lane - step : lane;
      masks.high[bit][lane] = (lane & step) != 0 ? kLanes + lane : lane + step;
    }
  }
  return masks;
}
alignas(64) constexpr Exchange kExchange = make_exchange();

// in [16][in_stride] -> out [16][out_stride], transposed
inline void transpose_16(const uint32_t* in, int64_t in_stride, uint32_t* out, int64_t out_stride) {
  Words rows[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) rows[i] = load_words(in + i * in_stride);
  for (int bit = 0; bit < 4; ++bit) {
    const int64_t step = int64_t{1} << bit;
    const Words low = load_words(kExchange.low[bit]), high = load_words(kExchange.high[bit]);
    for (int64_t i = 0; i < kLanes; ++i) {
      if ((i & step) != 0) continue;
      const Words a = rows[i], b = rows[i + step];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + step] = __builtin_shuffle(a, b, high);
    }
  }
  for (int64_t i = 0; i < kLanes; ++i) store_words(out + i * out_stride, rows[i]);
}

// in [rows][cols] -> out [cols][rows], both multiples of 16
inline void transpose_words(int64_t rows, int64_t cols, const uint32_t* in, uint32_t* out) {
  for (int64_t i = 0; i < rows; i += kLanes)
    for (int64_t j = 0; j < cols; j += kLanes) transpose_16(in + i * cols + j, cols, out + j * rows + i, rows);
}

void copy(int64_t rows, int64_t cols, const Bf16* x, int64_t stride, int64_t width, Bf16* out) {
  for (int64_t row = 0; row < kTile; ++row, out += width) {
    const int64_t count = row < rows ? cols : 0;
    if (count != 0) memcpy(out, x + row * stride, sizeof(Bf16) * count);
    memset(out + count, 0, sizeof(Bf16) * (width - count));
  }
}

void pair(int64_t rows, int64_t cols, const Bf16* x, int64_t stride, int64_t width, Bf16* out) {
  alignas(64) Bf16 padded[kTile * kMostTileWidth];
  copy(rows, cols, x, stride, width, padded);
  for (int64_t row = 0; row < kTile; row += 2) {
    for (int64_t i = 0; i < width; i += kLanes) {
      Halves even, odd;
      memcpy(&even, padded + row * width + i, sizeof even);
      memcpy(&odd, padded + (row + 1) * width + i, sizeof odd);
      store_words(out + row * width + 2 * i, widened(even) | (widened(odd) << 16));
    }
  }
}

void pair_transposed(int64_t rows, int64_t cols, const Bf16* x, int64_t stride, int64_t width, Bf16* out) {
  alignas(64) Bf16 padded[kTile * kMostTileWidth];
  copy(rows, cols, x, stride, width, padded);
  transpose_words(kTile, width / 2, reinterpret_cast<const uint32_t*>(padded), reinterpret_cast<uint32_t*>(out));
}

void transpose(int64_t rows, int64_t cols, const Bf16* x, int64_t stride, int64_t width, Bf16* out) {
  alignas(64) Bf16 pairs[kTile * kMostTileWidth];
  pair_transposed(rows, cols, x, stride, width, pairs);
  for (int64_t i = 0; i < width; i += 2) {
    for (int64_t j = 0; j < kTile; j += kLanes) {
      const Words both = load_words(pairs + i * kTile + 2 * j);
      store_halves(out + i * kTile + j, both & 0xFFFF);
      store_halves(out + (i + 1) * kTile + j, both >> 16);
    }
  }
}

// Which of the queries [first, first + 16) of a tile see key k.
template <bool kAll>
struct Visible {
  Lanes<int32_t> after;  // position of a query minus that of the tile's first key
  int32_t window;

  Visible(const TileMask& mask, int64_t first) {
    for (int32_t lane = 0; lane < kLanes; ++lane) after[lane] = static_cast<int32_t>(mask.ahead + first) + lane;
    window = mask.window > INT32_MAX ? INT32_MAX : static_cast<int32_t>(mask.window);
  }
  Lanes<float> of(int64_t k, Lanes<float> seen, Lanes<float> unseen) const {
    if (kAll) return seen;
    const Lanes<int32_t> distance = after - static_cast<int32_t>(k);
    return ((distance >= 0) & (distance < window)) != 0 ? seen : unseen;
  }
};

// exponential() hides what is not finite.
inline Lanes<float> weight_of(Lanes<float> exponent) { return exponential(exponent) + exponent * 0.0f; }
// Of exponents up to 0, or of keys that are not seen, whose weights are not taken.
inline Lanes<float> weight_below_highest(Lanes<float> exponent) {
  return exponential_of_low(exponent) + exponent * 0.0f;
}

// The highest scores of the queries so far and in this tile. Each maximum waits for the one before it, so those of all
// 64 queries are taken side by side.
template <bool kAll>
void raise(const TileMask& mask, const float* scores, float* highest) {
  static_assert(kTile == 4 * kLanes);
  const Visible<kAll> v0(mask, 0), v1(mask, kLanes), v2(mask, 2 * kLanes), v3(mask, 3 * kLanes);
  Lanes<float> h0 = load(highest, Block{0}), h1 = load(highest, Block{kLanes}), h2 = load(highest, Block{2 * kLanes}),
               h3 = load(highest, Block{3 * kLanes});
  const auto higher = [](const Visible<kAll>& visible, int64_t k, const float* row, Lanes<float>& so_far) {
    const Lanes<float> score = visible.of(k, load(row, Block{0}), so_far);
    so_far = score > so_far ? score : so_far;
  };
  for (int64_t k = 0; k < kTile; ++k, scores += kTile) {
    higher(v0, k, scores, h0);
    higher(v1, k, scores + kLanes, h1);
    higher(v2, k, scores + 2 * kLanes, h2);
    higher(v3, k, scores + 3 * kLanes, h3);
  }
  memcpy(highest, &h0, sizeof h0);
  memcpy(highest + kLanes, &h1, sizeof h1);
  memcpy(highest + 2 * kLanes, &h2, sizeof h2);
  memcpy(highest + 3 * kLanes, &h3, sizeof h3);
}

template <bool kAll>
void softmax_tile(const TileMask& mask, float scale, const float* scores, RunningSoftmax* softmax, float* factor,
                  Bf16* weights) {
  alignas(64) float before[kTile];
  memcpy(before, softmax->highest, sizeof before);
  raise<kAll>(mask, scores, softmax->highest);
  for (int64_t first = 0; first < kTile; first += kLanes) {
    const Visible<kAll> visible(mask, first);
    const Lanes<float> highest = load(softmax->highest, Block{first});
    const Lanes<float> correction = exponential((load(before, Block{first}) - highest) * scale);
    Lanes<float> sum = load(softmax->sum, Block{first}) * correction;
    for (int64_t k = 0; k < kTile; k += 2) {
      const auto weight = [&](int64_t key) {
        return visible.of(key, weight_below_highest((load(scores + key * kTile, Block{first}) - highest) * scale),
                          Lanes<float>{});
      };
      const Lanes<float> even = weight(k), odd = weight(k + 1);
      sum += even;
      sum += odd;
      store_words(weights + k * kTile + 2 * first, in_pairs(even, odd));
    }
    memcpy(softmax->sum + first, &sum, sizeof sum);
    memcpy(factor + first, &correction, sizeof correction);
  }
}

void softmax(const TileMask& mask, float scale, const float* scores, RunningSoftmax* softmax, float* factor,
             Bf16* weights) {
  if (mask.all_visible())
    softmax_tile<true>(mask, scale, scores, softmax, factor, weights);
  else
    softmax_tile<false>(mask, scale, scores, softmax, factor, weights);
}

void scale_columns(int64_t rows, const float* __restrict factor, float* __restrict x) {
  for (int64_t row = 0; row < rows; ++row, x += kTile)
    for (int64_t i = 0; i < kTile; ++i) x[i] *= factor[i];
}

// x [width][64], each column times by[column]
void store_columns(int64_t rows, int64_t cols, int64_t width, const float* x, const float* by, Bf16* out,
                   int64_t stride) {
  alignas(64) uint32_t pairs[kTile * kMostTileWidth / 2], turned[kTile * kMostTileWidth / 2];
  for (int64_t i = 0; i < width; i += 2) {
    for (int64_t j = 0; j < kTile; j += kLanes) {
      const Lanes<float> factor = load(by, Block{j});
      store_words(pairs + i / 2 * kTile + j,
                  in_pairs(load(x + i * kTile, Block{j}) * factor, load(x + (i + 1) * kTile, Block{j}) * factor));
    }
  }
  transpose_words(width / 2, kTile, pairs, turned);
  for (int64_t row = 0; row < rows; ++row) memcpy(out + row * stride, turned + row * width / 2, sizeof(Bf16) * cols);
}

void finish(int64_t rows, int64_t cols, int64_t width, float scale, const float* sums, const RunningSoftmax& softmax,
            Bf16* out, int64_t stride, float* logsumexp) {
  alignas(64) float inverse[kTile];
  for (int64_t i = 0; i < kTile; ++i) inverse[i] = 1.0f / softmax.sum[i];
  store_columns(rows, cols, width, sums, inverse, out, stride);
  for (int64_t row = 0; row < rows; ++row) logsumexp[row] = softmax.highest[row] * scale + logf(softmax.sum[row]);
}

void dot(int64_t rows, int64_t cols, const Bf16* a, int64_t a_stride, const Bf16* b, int64_t b_stride, float* out) {
  for (int64_t row = 0; row < rows; ++row, a += a_stride, b += b_stride)
    out[row] = lane_sum<float>(cols, [&](auto i) { return load(a, i) * load(b, i); });
}

template <bool kAll>
void softmax_gradient_tile(const TileMask& mask, float scale, const float* scores, const float* dweights,
                           const float* logsumexp, const float* dots, Bf16* weights, Bf16* dscores,
                           Bf16* dscores_in_pairs) {
  for (int64_t first = 0; first < kTile; first += kLanes) {
    const Visible<kAll> visible(mask, first);
    const Lanes<float> shift = load(logsumexp, Block{first}), dot = load(dots, Block{first});
    for (int64_t k = 0; k < kTile; k += 2) {
      const auto gradient = [&](int64_t key) {
        const Lanes<float> exponent = load(scores + key * kTile, Block{first}) * scale - shift;
        const Lanes<float> weight = visible.of(key, weight_of(exponent), Lanes<float>{});
        put(weights + key * kTile, Block{first}, weight);
        const Lanes<float> dscore = weight * (load(dweights + key * kTile, Block{first}) - dot) * scale;
        put(dscores + key * kTile, Block{first}, dscore);
        return dscore;
      };
      const Lanes<float> even = gradient(k), odd = gradient(k + 1);
      store_words(dscores_in_pairs + k * kTile + 2 * first, in_pairs(even, odd));
    }
  }
}

void softmax_gradient(const TileMask& mask, float scale, const float* scores, const float* dweights,
                      const float* logsumexp, const float* dots, Bf16* weights, Bf16* dscores, Bf16* dscores_in_pairs) {
  if (mask.all_visible())
    softmax_gradient_tile<true>(mask, scale, scores, dweights, logsumexp, dots, weights, dscores, dscores_in_pairs);
  else
    softmax_gradient_tile<false>(mask, scale, scores, dweights, logsumexp, dots, weights, dscores, dscores_in_pairs);
}

void store_rows(int64_t rows, int64_t cols, int64_t width, const float* x, Bf16* out, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row, x += width, out += stride)
    each(cols, [&](auto i) { put(out, i, load(x, i)); });
}

void store_transposed(int64_t rows, int64_t cols, int64_t width, const float* x, Bf16* out, int64_t stride) {
  alignas(64) float ones[kTile];
  for (float& one : ones) one = 1.0f;
  store_columns(rows, cols, width, x, ones, out, stride);
}

constexpr AttentionKernels kTable = {&copy,   &pair, &pair_transposed,  &transpose,  &softmax,         &scale_columns,
                                     &finish, &dot,  &softmax_gradient, &store_rows, &store_transposed};

}  // namespace

const AttentionKernels& attention_table();
const AttentionKernels& attention_table() { return kTable; }

}  // namespace TRIREME_KERNEL_LEVEL
}  // namespace trireme::ops
