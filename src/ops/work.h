// The work of an operation for a profile (base/profile.h), from shapes alone. For .cpp files of operations.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/profile.h"

namespace trireme::ops {

/// Bytes of a tensor; 0 for none.
inline double bytes_of(const at::Tensor& tensor) { return tensor.defined() ? static_cast<double>(tensor.nbytes()) : 0; }
template <typename... Tensors>
double bytes_of(const at::Tensor& first, const Tensors&... others) {
  return bytes_of(first) + (bytes_of(others) + ... + 0.0);
}

/// [m, k] x [k, n], of elements of `element_size` bytes; the result, of `result_size`, is also read where it is added
/// to.
inline profile::Work product_work(std::string_view of, int64_t m, int64_t n, int64_t k, int64_t element_size,
                                  int64_t result_size, bool accumulate = false) {
  const auto number = [](int64_t x) { return static_cast<double>(x); };
  return {.of = of,
          .shape = {m, n, k},
          .flops = 2 * number(m) * number(n) * number(k),
          .bytes = (number(m) + number(n)) * number(k) * number(element_size) +
                   number(m) * number(n) * number(result_size) * (accumulate ? 2 : 1)};
}

/// A pass over rows of `cols` elements that moves `bytes` in all.
inline profile::Work pass_work(std::string_view of, int64_t elements, int64_t cols, double bytes) {
  return {.of = of, .shape = {cols == 0 ? 0 : elements / cols, cols, -1}, .bytes = bytes};
}

}  // namespace trireme::ops
