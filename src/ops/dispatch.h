// Glue between tensors and the raw kernels: element type, contiguous pointers, split over threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "ops/kernels.h"

namespace trireme::ops {

/// The ScalarType of sums, statistics, master weights and moments for activations of type `dtype`: float for bf16,
/// fp16 and float, double for double.
inline at::ScalarType compute_type(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// Calls body(T{}) with the kernel element type of `dtype`: Bf16, F16, float or double.
template <typename Body>
decltype(auto) dispatch(at::ScalarType dtype, Body&& body) {
  switch (dtype) {
    case at::kBFloat16:
      return body(Bf16{});
    case at::kHalf:
      return body(F16{});
    case at::kFloat:
      return body(float{});
    case at::kDouble:
      return body(double{});
    default:
      throw_internal("no kernel for element type {}", c10::toString(dtype));
  }
}

template <typename T>
T* data(const at::Tensor& tensor) {
  TRIREME_CHECK(!tensor.defined() || tensor.is_contiguous(), "a kernel needs contiguous memory");
  return tensor.defined() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
}

/// Splits rows over the thread team; a piece has at least about 16k elements, since waking the team costs microseconds.
template <typename Body>
void parallel_rows(int64_t rows, int64_t elements_per_row, Body&& body) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements_per_row));
  at::parallel_for(0, rows, grain, body);
}

/// Calls body(from, to, values) for stretches of [begin, end) with the values of a tensor as C, in order: all of it at
/// once where the tensor is in C, else in pieces that are widened in cache.
template <typename C, typename Body>
void for_each_widened(const at::Tensor& tensor, int64_t begin, int64_t end, Body&& body) {
  dispatch(tensor.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T* from = data<T>(tensor);
    if constexpr (std::is_same_v<T, C>) {
      body(begin, end, from + begin);
    } else if constexpr (std::is_same_v<Compute<T>, C>) {
      constexpr int64_t kPiece = 2048;
      alignas(64) C wide[kPiece];
      for (int64_t first = begin; first < end; first += kPiece) {
        const int64_t count = std::min(kPiece, end - first);
        kernels<T>().add_to(count, from + first, wide, false);
        body(first, first + count, static_cast<const C*>(wide));
      }
    } else {
      throw_internal("{} cannot be widened to the type that computes", c10::toString(tensor.scalar_type()));
    }
  });
}

/// Rows whose weight gradients are summed one after another; the sums of such blocks are then added in order. A split
/// by shape, so that the sum does not depend on how many threads there are.
inline constexpr int64_t kSumBlock = 128;
inline int64_t sum_blocks(int64_t rows) { return std::max<int64_t>(1, (rows + kSumBlock - 1) / kSumBlock); }

/// Adds the rows of sums [blocks, cols] to the first, one after another.
template <typename C>
void add_blocks(int64_t blocks, int64_t cols, C* sums) {
  for (int64_t block = 1; block < blocks; ++block) kernels<C>().add_to(cols, sums + block * cols, sums, true);
}

/// Whether the CPU kernels apply; elsewhere the reference built from ATen operations runs.
inline bool on_cpu(const at::Tensor& tensor) { return tensor.device().is_cpu(); }

}  // namespace trireme::ops
