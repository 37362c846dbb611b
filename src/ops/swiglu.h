// The gated activation of Llama's feed-forward layer (Shazeer, arXiv:2002.05202).
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::ops {

/// gate_up [.., 2*ffn], the gate first -> silu(gate) * up [.., ffn]. Saves its input.
at::Tensor swiglu(const at::Tensor& gate_up);

namespace reference {
at::Tensor swiglu(const at::Tensor& gate_up);
}  // namespace reference

}  // namespace trireme::ops
