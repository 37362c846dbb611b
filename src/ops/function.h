// Shorthand for writing torch::autograd::Function with weights that live outside autograd. For .cpp files of ops only.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "ops/gradient_sink.h"

namespace trireme::ops {

using Context = torch::autograd::AutogradContext;
using Gradients = torch::autograd::variable_list;

/// saved_data holds IValues only, so a sink travels as an integer. The owner outlives the graph (a step).
inline int64_t pointer(GradientSink* sink) { return reinterpret_cast<int64_t>(sink); }
inline GradientSink* sink_of(Context* context, const char* key = "sink") {
  return reinterpret_cast<GradientSink*>(context->saved_data[key].toInt());
}

/// Delivers the product a @ b as the gradient of a weight, accumulating in the product itself where types allow.
void deliver_product(GradientSink* sink, const at::Tensor& a, const at::Tensor& b);

}  // namespace trireme::ops
