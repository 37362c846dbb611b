// A parameter: what the program calls a weight, apart from how it is laid out over ranks.
//
// A physical tensor may stack several logical tensors along dimension 0 (q, k, v; gate, up), so that one matrix product
// serves them all. Initialisation, clipping, digests, checkpoints and optimizers work on the logical tensors, through
// fragments(); none asks which parallelism is on.
//
// Life: the model creates parameters on the meta device (shape only); their owner (parallel/) gives them memory, fills
// it and counts gradients. Ops see a parameter as an ops::Weight.
//
// What a rank holds of a parameter for good are rows of dimension 0 of the physical tensor: all of them, or its shard.
// What computes is the whole tensor, value(), whose memory may come and go; the tensor object stays the same, so that
// whatever keeps it for backward finds in it what is there then.
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

/// A box of a logical tensor that this rank holds, and where it starts in what the rank holds of the physical tensor.
struct Fragment {
  const LogicalTensor* logical = nullptr;
  std::vector<int64_t> offset, size;  ///< in logical coordinates
  int64_t local_offset = 0;           ///< elements from the start of master(); the box is contiguous there
  int64_t elements() const;
};

/// A range of rows of dimension 0.
struct Rows {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Rows&) const = default;
};

/// The rows of `rows` that rank `rank` of `ranks` holds where ranks divide a tensor: as even as they go.
inline Rows rows_of_rank(int64_t rows, int64_t rank, int64_t ranks) {
  return {rows * rank / ranks, rows * (rank + 1) / ranks};
}

class Parameter;

/// Who gives parameters memory, and has to know when it is needed.
class ParameterOwner {
 public:
  virtual ~ParameterOwner() = default;
  /// An operation is about to read value().
  virtual void before_use(const Parameter& parameter) = 0;
  /// The first contribution since expect_gradients() is about to be written: receive_gradient() may be called.
  virtual void before_gradient(Parameter& parameter) = 0;
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
  /// Type of activations and of value(); statistics are in ops::compute_type of it, and gradients in one or the other.
  at::ScalarType dtype() const { return dtype_; }

  /// Of dimension 0: what this rank holds for good, and how many elements that is.
  const Rows& rows() const { return rows_; }
  int64_t held_elements() const { return rows_.size() * row_elements(); }
  int64_t row_elements() const { return shape_[0] == 0 ? 0 : elements() / shape_[0]; }
  /// The same as boxes of logical tensors, in the order of the physical tensor; none is empty.
  std::vector<Fragment> fragments() const;

  struct Memory {
    at::Tensor value;     ///< of shape(), in dtype()
    Rows rows;            ///< what this rank holds
    at::Tensor master;    ///< the rows, in the compute type
    at::Tensor copy;      ///< the rows of `value` that follow `master`; undefined where they are `master` itself, or
                          ///< where the value is made from it each time
    at::Tensor gradient;  ///< the rows, in the compute type or dtype(): the sum over all ranks, for the optimizer
    at::Tensor received;  ///< of shape(), in the type of `gradient`: where operations leave it; undefined: given later
    ParameterOwner* owner = nullptr;
  };
  void bind(Memory memory);
  /// All of it on one rank: `value` in dtype(), `master` and `gradient` in the compute type, of shape(). value and
  /// master are the same tensor when the types are equal.
  void bind(const at::Tensor& value, const at::Tensor& master, const at::Tensor& gradient);
  /// Where operations leave the gradient from now on, of shape().
  void receive_gradient(const at::Tensor& received) { received_ = received; }

  const at::Tensor& value() const { return value_; }
  const at::Tensor& master() const { return master_; }
  const at::Tensor& copy() const { return copy_; }
  const at::Tensor& gradient() const { return gradient_; }

  /// Its value stays as it is: no gradient is asked for. Before bind(), which then takes none.
  void freeze() { trainable_ = false; }
  bool trainable() const { return trainable_; }

  /// For operations: the value, and this parameter as the sink when gradients are recorded. Of a
  /// forward pass; what is made again in backward may read value().
  ops::Weight weight();

  /// Starts counting: the gradient is complete after uses x micro_batches contributions; then `on_complete` is called,
  /// on the thread that ran the last backward. Throws from target() when a contribution too many arrives.
  void expect_gradients(int64_t micro_batches, std::function<void(Parameter&)> on_complete);
  bool complete() const { return arrived_ == expected_; }
  int64_t expected() const { return expected_; }
  int64_t arrived() const { return arrived_; }
  /// Operations of one micro-batch's forward pass that read it.
  int64_t uses() const { return uses_; }

  ops::GradientTarget target() override;
  void delivered() override;

 private:
  std::string name_;
  std::vector<LogicalTensor> parts_;
  std::vector<int64_t> shape_;
  at::ScalarType dtype_;
  int64_t uses_;
  at::Tensor value_, master_, copy_, gradient_, received_;
  Rows rows_;
  bool trainable_ = true;
  ParameterOwner* owner_ = nullptr;
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
