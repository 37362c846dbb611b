// Small products of bf16 matrices on the tile registers of AMX, for kernels that make thousands of them in a row.
//
// Through at::native::cpublas::brgemm, oneDNN's small products load the registers' configuration again whenever one
// product differs from the one before, as in attention each does: that took as long as the product itself.
//
// On raw memory, without torch or threads.
#pragma once

#include <cstdint>

#include "ops/kernels.h"

namespace trireme::ops {

/// Whether this CPU has tile registers with products of bf16, and the operating system lets this process use them,
/// which it is asked for at the first call.
bool have_tile_products();
/// The same, unless TRIREME_KERNELS names a lower level.
bool tile_products_apply();

/// While it lives, its thread's tile registers are configured for our products. What was configured before, by
/// at::native::cpublas::brgemm say, which remembers that it did, comes back afterwards. Nothing else may use them in
/// between. Only where have_tile_products().
class TileRegisters {
 public:
  TileRegisters();
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

 private:
  alignas(64) uint8_t before_[64];
};

class TileProducts : private TileRegisters {
 public:
  /// c [m, n] = a [m, k] @ b, or += with `add`. Rows lie next to one another; b in pairs: [k/2][n][2]. m, n and k are
  /// multiples of 32. Each number of c is summed over k in the same order, whatever m and n are.
  void multiply(int64_t m, int64_t n, int64_t k, const Bf16* a, const Bf16* b, float* c, bool add) const;
};

}  // namespace trireme::ops
