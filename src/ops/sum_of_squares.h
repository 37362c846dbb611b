// Sum of squares of a tensor in double, in an order that depends on its size alone.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::ops {

/// `values` contiguous, of any floating-point type. A NaN or an infinity in it shows in the result.
double sum_of_squares(const at::Tensor& values);

/// Of each row of dimension 0: [rows] in double. A row's sum depends on its own values and length alone.
at::Tensor sums_of_squares_of_rows(const at::Tensor& values);

}  // namespace trireme::ops
