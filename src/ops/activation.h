// The activations of feed-forward layers: GELU by the tanh formula, as GPT-2 has it (Hendrycks and Gimpel,
// arXiv:1606.08415, section 2), and SwiGLU, the gated one of Llama (Shazeer, arXiv:2002.05202).
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::ops {

/// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), any shape. Saves its input.
at::Tensor gelu(const at::Tensor& x);

/// gate_up [.., 2*ffn], the gate first -> silu(gate) * up [.., ffn]. Saves its input.
at::Tensor swiglu(const at::Tensor& gate_up);

namespace reference {
at::Tensor gelu(const at::Tensor& x);
at::Tensor swiglu(const at::Tensor& gate_up);
}  // namespace reference

}  // namespace trireme::ops
