// A parameter: what the program calls a weight, apart from how it is laid out over ranks.
//
// A physical tensor may stack several logical tensors along dimension 0 (q, k, v; gate, up), so that one matrix product
// serves them all. Initialisation, clipping, digests, checkpoints and optimizers work on the logical tensors, through
// fragments(); none asks which parallelism is on.
//
// Life: the model creates parameters on the meta device (shape only); their owner (parallel/) gives them memory, fills
// it and counts gradients. Ops see a parameter as an ops::Weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/gradient_sink.h"

namespace trireme::nn {

/// How a logical tensor starts. Values come from a counter-based generator keyed by (seed, name, element): the same
/// bits for any layout and any number of ranks.
struct Init {
  enum class Kind { zeros, ones, truncated_normal };
  Kind kind = Kind::ones;
  double standard_deviation = 0;  ///< before the cut at +-3 of them
};

/// A tensor whose name and shape do not depend on the layout.
struct LogicalTensor {
  std::string name;
  std::vector<int64_t> shape;
  Init init;
  bool decay = true;  ///< weight decay applies (not to norms and biases)

  int64_t elements() const;
};

/// A box of a logical tensor that this rank holds, and where it starts in the physical tensor.
struct Fragment {
  const LogicalTensor* logical = nullptr;
  std::vector<int64_t> offset, size;  ///< in logical coordinates
  int64_t local_offset = 0;           ///< elements from the start of the physical tensor; the box is contiguous there
  int64_t elements() const;
};

class Parameter final : public ops::GradientSink {
 public:
  /// `parts` are stacked along dimension 0; their other dimensions are equal. `uses`: how many operations of one
  /// micro-batch's forward pass read it (2 for a tied embedding), each of which will deliver a gradient.
  Parameter(std::vector<LogicalTensor> parts, at::ScalarType dtype, int64_t uses = 1);

  /// Name of the only part, or what the parts share: `blocks.0.attention.q+k+v.weight`.
  std::string_view name() const override { return name_; }
  const std::vector<LogicalTensor>& parts() const { return parts_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elements() const;
  /// Type of activations and of value(); statistics and gradients are in ops::compute_type of it.
  at::ScalarType dtype() const { return dtype_; }

  /// What this rank holds, in the order of the physical tensor.
  std::vector<Fragment> fragments() const;

  /// Gives memory: `value` in dtype(), `master` and `gradient` in the compute type, all of shape(). value and master
  /// are the same tensor when the types are equal.
  void bind(const at::Tensor& value, const at::Tensor& master, const at::Tensor& gradient);

  const at::Tensor& value() const { return value_; }
  const at::Tensor& master() const { return master_; }
  const at::Tensor& gradient() const { return gradient_; }

  /// For operations: the value, and this parameter as the sink when gradients are recorded.
  ops::Weight weight();

  /// Starts counting: the gradient is complete after uses x micro_batches contributions; then `on_complete` is called,
  /// on the thread that ran the last backward. Throws from target() when a contribution too many arrives.
  void expect_gradients(int64_t micro_batches, std::function<void(Parameter&)> on_complete);
  bool complete() const { return arrived_ == expected_; }
  int64_t expected() const { return expected_; }
  int64_t arrived() const { return arrived_; }

  ops::GradientTarget target() override;
  void delivered() override;

 private:
  std::string name_;
  std::vector<LogicalTensor> parts_;
  std::vector<int64_t> shape_;
  at::ScalarType dtype_;
  int64_t uses_;
  at::Tensor value_, master_, gradient_;
  int64_t expected_ = 0, begun_ = 0, arrived_ = 0;
  std::function<void(Parameter&)> on_complete_;
};

/// Parameters whose communication is issued together: the embedding; each block; final norm with head (a tied embedding
/// and head are one unit).
struct Unit {
  std::string name;
  std::vector<Parameter*> parameters;
};

/// Fills a contiguous tensor of the compute type with the initial values of elements [first, first + values.numel()) of
/// a logical tensor.
void initialize(const LogicalTensor& logical, int64_t first, const at::Tensor& values, uint64_t seed);

}  // namespace trireme::nn
