// The parts of attention in tiles that are not matrix products: softmax and its gradient, and the layouts that the
// products read. On raw bf16 and float, without torch or threads; compiled for the processors that have tile registers
// (ops/tile_product.h).
//
// A tile is 64 queries by 64 keys. Scores lie transposed, [keys][queries]: then the maximum and the sum of a query run
// over rows, lane by lane. `width` is head_dim rounded up to a multiple of 32; what is added is 0. A matrix in pairs
// has two rows interleaved, [rows/2][cols][2]: the layout of the right operand of a bf16 product on AMX ("VNNI").
#pragma once

#include <cstdint>

#include "ops/kernels.h"

namespace trireme::ops {

inline constexpr int64_t kTile = 64;
inline constexpr int64_t kMostTileWidth = 256;

/// Query q of a tile sees its key k if 0 <= ahead + q - k < window.
struct TileMask {
  int64_t ahead;   ///< position of the tile's first query minus that of its first key
  int64_t window;  ///< tokens that a query looks back, itself included; INT64_MAX: all

  bool all_visible() const { return ahead >= kTile - 1 && ahead + kTile - 1 < window; }
};

/// `highest` before the first score; finite, so that differences are.
inline constexpr float kLowestScore = -1e30F;

/// Softmax of a query over the keys so far, of a tile's queries (Milakov and Gimelshein, arXiv:1805.02867).
struct RunningSoftmax {
  float highest[kTile];  ///< score, before scaling
  float sum[kTile];      ///< of exp(scale * (score - highest))
};

struct AttentionKernels {
  // x: `rows` <= 64 rows of `cols` <= width numbers, `stride` elements apart.
  /// out [64][width]
  void (*copy)(int64_t rows, int64_t cols, const Bf16* x, int64_t stride, int64_t width, Bf16* out);
  /// out [64/2][width][2]: x in pairs
  void (*pair)(int64_t rows, int64_t cols, const Bf16* x, int64_t stride, int64_t width, Bf16* out);
  /// out [width/2][64][2]: the transpose of x in pairs
  void (*pair_transposed)(int64_t rows, int64_t cols, const Bf16* x, int64_t stride, int64_t width, Bf16* out);
  /// out [width][64]
  void (*transpose)(int64_t rows, int64_t cols, const Bf16* x, int64_t stride, int64_t width, Bf16* out);

  /// Takes a tile of scores into the softmax: weights [64/2][64][2] in pairs = exp(scale * (score - highest)), and
  /// factor [64], what earlier sums of weights (times values) are to be multiplied by.
  void (*softmax)(const TileMask& mask, float scale, const float* scores, RunningSoftmax* softmax, float* factor,
                  Bf16* weights);
  /// x [rows][64]: column q times factor[q]
  void (*scale_columns)(int64_t rows, const float* factor, float* x);
  /// sums [width][64] of weights times values -> out, `rows` rows of `cols` numbers, `stride` apart; logsumexp [rows]
  void (*finish)(int64_t rows, int64_t cols, int64_t width, float scale, const float* sums,
                 const RunningSoftmax& softmax, Bf16* out, int64_t stride, float* logsumexp);

  /// dot [rows] = sum over a row of a * b
  void (*dot)(int64_t rows, int64_t cols, const Bf16* a, int64_t a_stride, const Bf16* b, int64_t b_stride, float* dot);
  /// weights = exp(scale * score - logsumexp); their gradient through the softmax, dscores = weights * (dweights - dot)
  /// * scale, as [64][64] and in pairs. logsumexp and dot [64] by query.
  void (*softmax_gradient)(const TileMask& mask, float scale, const float* scores, const float* dweights,
                           const float* logsumexp, const float* dot, Bf16* weights, Bf16* dscores,
                           Bf16* dscores_in_pairs);
  /// x [64][width], or [width][64] -> out, `rows` rows of `cols` numbers, `stride` apart
  void (*store)(int64_t rows, int64_t cols, int64_t width, const float* x, Bf16* out, int64_t stride);
  void (*store_transposed)(int64_t rows, int64_t cols, int64_t width, const float* x, Bf16* out, int64_t stride);
};

/// Where tile_products_apply(); throws elsewhere.
const AttentionKernels& attention_kernels();

}  // namespace trireme::ops
