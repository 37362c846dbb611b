// Large products of bf16 matrices on the tile registers of AMX: operands packed into panels, and blocks of 32 by 32
// numbers made of two panels. On raw memory, without torch or threads; ops/tiled_matmul.h deals the work out.
#pragma once

#include <cstdint>

#include "ops/kernels.h"
#include "ops/tile_product.h"

namespace trireme::ops {

/// Outer rows (of a) or columns (of b) in a panel, and steps of the sum that one instruction takes.
inline constexpr int64_t kPanel = 32, kPanelStep = 32;
static constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/// An operand where it lies: [outer, k], where `outer` are the rows of a product's left operand or the columns of its
/// right one. Either outer or k is contiguous, the other has `stride`, in elements.
struct PanelSource {
  const Bf16* data;
  int64_t stride;
  bool k_contiguous;
};

/// Packs outer rows [first, first + outer) and steps [k_first, k_first + k) into panels of kPanel rows, one after
/// another, each of round_up(k, kPanelStep) * kPanel elements, aligned to 64 bytes; what is beyond is 0. As tiles of a
/// left operand (rows of 32 numbers) or of a right one (`pairs`: rows of 16 pairs, as the instruction wants it).
void pack_panels(const PanelSource& source, int64_t first, int64_t outer, int64_t k_first, int64_t k, bool pairs,
                 Bf16* to);

/// Where a block of the product goes.
struct PanelOutput {
  void* data;                  ///< of the block's first number
  int64_t stride;              ///< elements from row to row
  bool is_float;               ///< else bf16
  const Bf16* bias = nullptr;  ///< of the block's columns, or none
  bool add = false;            ///< to what is there; of bf16
};

/// Sums are made over k in steps of kPanelStep from its first number on, whatever else is in the call: the bits of a
/// number depend on its row, its column and k alone. Subnormal numbers count as 0, in operands, sums and results
/// (Intel's manual, volume 2, TDPBF16PS).
class PanelProducts : private TileRegisters {
 public:
  /// A block of 32 x 32 floats, by `stride`, = left panel x right panel, or += with `add`; `steps` of kPanelStep.
  /// Memory from `ahead` on, 256 bytes a step, is fetched into the second-level cache meanwhile; may be null.
  void multiply(const Bf16* left, const Bf16* right, int64_t steps, float* out, int64_t stride, bool add,
                const void* ahead) const;
};

/// The first rows x cols of a block of sums, plus the bias or what is there, to their place; rounded once.
void write_block(const float* sums, int64_t rows, int64_t cols, const PanelOutput& out);
/// The other way, for a block that is added to: floats of `from`, by `stride`, into the first rows x cols of sums.
void read_block(const float* from, int64_t stride, int64_t rows, int64_t cols, float* sums);

}  // namespace trireme::ops
