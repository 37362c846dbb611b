// Rows of a table by token id.
#pragma once

#include "ops/gradient_sink.h"

namespace trireme::ops {

/// tokens [.., int64], weight [vocab, hidden] -> [.., hidden]. The gradient is a sum over equal tokens in the order of
/// the input, whatever the number of threads. `anchor`: any tensor that requires a gradient, since neither input does
/// (weights live outside autograd); its own gradient is none.
at::Tensor embedding(const at::Tensor& tokens, const Weight& weight, const at::Tensor& anchor);

}  // namespace trireme::ops
