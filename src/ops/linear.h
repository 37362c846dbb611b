// y = x W^T + b, the matrix product of every projection.
#pragma once

#include <functional>

#include "ops/gradient_sink.h"

namespace trireme::ops {

/// Makes the input of a linear again, in every bit, from what the operations before it keep anyway. With one, the
/// linear keeps no input (selective recomputation; Korthikanti et al., arXiv:2205.05198, section 5). It lives until
/// backward.
using Rebuild = std::function<at::Tensor()>;

/// x [.., in], weight [out, in] -> [.., out]. Backward: dx = dy W; dW = dy^T x goes to the weight's sink, in fp32.
at::Tensor linear(const at::Tensor& x, const Weight& weight, const Rebuild& rebuild = {});

/// The same with bias [out], whose gradient is the sum of dy over the rows, in fp32 and in an order set by shape.
at::Tensor linear(const at::Tensor& x, const Weight& weight, const Weight& bias, const Rebuild& rebuild = {});

}  // namespace trireme::ops
