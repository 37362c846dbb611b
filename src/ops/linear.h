// y = x W^T, the matrix product of every projection.
#pragma once

#include "ops/gradient_sink.h"

namespace trireme::ops {

/// x [.., in], weight [out, in] -> [.., out]. Backward: dx = dy W; dW = dy^T x goes to the weight's sink, in fp32.
at::Tensor linear(const at::Tensor& x, const Weight& weight);

}  // namespace trireme::ops
