// Where the backward of an operation leaves the gradient of a weight.
//
// Weights are not autograd inputs: an operation's backward writes their gradient straight into the buffer that their
// owner chose (fp32 or bf16, possibly in memory shared with other ranks), accumulates over micro-batches without a
// temporary, and tells the owner. So the owner counts contributions and knows when a gradient is complete, which an
// AccumulateGrad hook cannot say (it fires once for each use).
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace trireme::ops {

struct GradientTarget {
  at::Tensor
      buffer;  ///< same shape as the weight, contiguous, in the compute type (float, or double) or the weight's own
  bool accumulate;  ///< add to the buffer; otherwise overwrite it
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// The buffer for the next contribution: called once for each, and followed by delivered() once it has been written
  /// and its backward pass has come. Others may begin in between.
  virtual GradientTarget target() = 0;
  virtual void delivered() = 0;
  /// Of the weight; "" where it has none. For profiles.
  virtual std::string_view name() const { return {}; }
};

/// A weight as operations see it: its value in the activations' type, and where its gradient goes (null: no gradient).
struct Weight {
  at::Tensor value;
  GradientSink* sink = nullptr;
  std::string_view name = {};  ///< for profiles
};

/// Adds `gradient` (any floating type) to the sink's buffer and reports it. Does nothing for a null sink.
void deliver(GradientSink* sink, const at::Tensor& gradient);

}  // namespace trireme::ops
