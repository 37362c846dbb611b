// Small products of bf16 matrices on the tile registers of AMX, for kernels that make thousands of them in a row.
//
// oneDNN's small products (at::native::cpublas::brgemm) load the registers' configuration again whenever one product
// differs from the one before, as in attention each does: that took as long as the product itself.
//
// On raw memory, without torch or threads.
#pragma once

#include <cstdint>

#include "ops/kernels.h"

namespace trireme::ops {

/// Whether this CPU has tile registers with products of bf16, and the kernel lets this process use them.
bool have_tile_products();

/// While it lives, its thread's tile registers are configured for multiply(). What was configured before, by oneDNN
/// say, which remembers what it configured, comes back afterwards. Nothing else may use them in between.
class TileProducts {
 public:
  TileProducts();
  ~TileProducts();
  TileProducts(const TileProducts&) = delete;
  TileProducts& operator=(const TileProducts&) = delete;

  /// c [m, n] = a [m, k] @ b, or += with `add`. Rows lie next to one another; b in pairs: [k/2][n][2]. m, n and k are
  /// multiples of 32. Each number of c is summed over k in the same order, whatever m and n are.
  void multiply(int64_t m, int64_t n, int64_t k, const Bf16* a, const Bf16* b, float* c, bool add) const;

 private:
  alignas(64) uint8_t before_[64];
};

}  // namespace trireme::ops
