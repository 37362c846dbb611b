// Sum of squares of a tensor in double, in an order that depends on its size alone.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::ops {

/// `values` contiguous, float or double. A NaN or an infinity in it shows in the result.
double sum_of_squares(const at::Tensor& values);

}  // namespace trireme::ops
