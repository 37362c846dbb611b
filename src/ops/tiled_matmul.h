// Products of bf16 matrices by our own kernel, where the CPU has tile registers (ops/tile_panels.h), cut as
// describe/matmul_plan.h says. Scratch has the purpose "workspace".
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::ops {

/// Whether our kernel makes this product: bf16 on a CPU with AMX, each operand with one contiguous dimension, and large
/// enough to fill tiles.
bool tiled_matmul_applies(const at::Tensor& a, const at::Tensor& b);

/// out = a @ b + bias, or out += a @ b. a [m, k], b [k, n]; out [m, n], rows contiguous, bf16 (summed in fp32, also
/// with what is there, and rounded once) or fp32; it overlaps neither operand. `bias` [n], contiguous, of bf16, may be
/// undefined, and is not for sums that are added. Subnormal numbers count as 0. Nothing is recorded for autograd.
/// Throws InternalError for operands that do not fit.
/// The bits of a number depend on its row of a, its column of b and k alone: not on the other rows and columns, nor on
/// the number of threads.
void tiled_matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                  bool accumulate);

}  // namespace trireme::ops
