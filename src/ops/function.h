// Shorthand for writing torch::autograd::Function with weights that live outside autograd. For .cpp files of operations
// only.
#pragma once

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "ops/gradient_sink.h"

namespace trireme::ops {

using Context = torch::autograd::AutogradContext;
using Gradients = torch::autograd::variable_list;

/// saved_data holds IValues only, so a sink travels as an integer. The owner outlives the graph (a step).
inline int64_t pointer(GradientSink* sink) { return reinterpret_cast<int64_t>(sink); }
inline GradientSink* sink_of(Context* context, const char* key = "sink") {
  return reinterpret_cast<GradientSink*>(context->saved_data[key].toInt());
}

/// For an argument that there is not: autograd::Function takes no undefined tensor.
inline at::Tensor nothing() {
  static const at::Tensor empty = at::empty({0});
  return empty;
}
/// The inverse: undefined for what is empty.
inline at::Tensor unless_empty(const at::Tensor& tensor) { return tensor.numel() == 0 ? at::Tensor() : tensor; }

/// A C++ value where autograd wants an IValue: an argument of Function::apply, kept alive as long as the graph.
template <typename T>
struct Held : torch::CustomClassHolder {
  explicit Held(T v) : value(std::move(v)) {}
  T value;
};
template <typename T>
using Holder = c10::intrusive_ptr<Held<T>>;
template <typename T>
Holder<T> hold(T value) {
  return c10::make_intrusive<Held<T>>(std::move(value));
}
template <typename T>
void keep(Context* context, const char* key, const Holder<T>& holder) {
  context->saved_data[key] = c10::IValue::make_capsule(holder);
}
template <typename T>
T& kept(Context* context, const char* key) {
  return c10::static_intrusive_pointer_cast<Held<T>>(context->saved_data[key].toCapsule())->value;
}

/// Delivers the product a @ b as the gradient of a weight (add_product() of ops/matmul.h).
void deliver_product(GradientSink* sink, const at::Tensor& a, const at::Tensor& b);

}  // namespace trireme::ops
