// Matrix products that are added to what is there.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::ops {

/// out = a @ b, or out += a @ b. a [m, k] and b [k, n] of one type, either may be a transposed view; out [m, n],
/// contiguous, in their type or in its compute type (dispatch.h). Products of bf16 are summed in fp32 and not rounded
/// to bf16 in between, where LibTorch has MKL (x86-64); other products whose `out` is wider than they are rounded
/// first.
void add_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool accumulate);

}  // namespace trireme::ops
