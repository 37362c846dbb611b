// Matrix products: our own kernel for bf16 where the CPU has tile registers (tiled_matmul.h), MKL's for sums into fp32,
// else ATen's. Which one depends on the shape: fewer than 32 rows or columns, and small products, are ATen's, so that a
// row's bits may differ between a large batch and a small one. Autograd records none of them.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::ops {

/// a @ b (+ bias [n], may be undefined), of their type. a [m, k] and b [k, n] of one type, either may be a transposed
/// view.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});
/// The same into `out` [m, n], rows contiguous.
void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b);

/// out = a @ b, or out += a @ b. a [m, k] and b [k, n] of one type, either may be a transposed view; out [m, n],
/// contiguous, in their type or in its compute type (dispatch.h). Products of bf16 are summed in fp32 and not rounded
/// to bf16 in between, where the CPU has tile registers or LibTorch has MKL (x86-64); other products whose `out` is
/// wider than they are rounded first.
void add_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool accumulate);

}  // namespace trireme::ops
