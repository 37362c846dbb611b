// Private to parallel: sums of gradients over ranks of which each contribution travels in 8 or 4 bits (ZeRO++: Wang et
// al., arXiv:2306.10209, section 3.3).
//
// A number is rounded once for each axis that it crosses, and sums are in float: each rank sends every other one its
// rounded contribution to that one's rows (an all-to-all), and adds what it gets to its own, which is not rounded, in
// the order of the ranks. A ring, as a plain reduce-scatter goes, would round at each of its steps.
//
// Over two axes this is the paper's hierarchy: the ranks of a copy (a machine) exchange whole gradients, and what
// crosses between copies is a rank's share of their sum, rounded once more. Copies then tell each other the rounded
// sums, so that all go on with the same ones.
//
// With error feedback each rank keeps what rounding lost and adds it to what it sends next, so that over steps nothing
// is lost for good (Seide et al., 2014; 1-bit Adam: Tang et al., arXiv:2102.02888; LoCo: Xie et al., arXiv:2407.04480).
// It costs as much memory as what is sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "parallel/quantized_parts.h"
#include "parallel/unit.h"

namespace trireme::parallel {

struct QuantizedGradientOptions {
  ops::QuantizedFormat format;
  bool error_feedback = false;
};

/// Reduce-scatters of lists of tensors over one axis, by quantised all-to-alls. They end in the order in which they
/// were posted.
class QuantizedReduceScatter {
 public:
  /// `parts`: one for each list of tensors that will be reduced.
  QuantizedReduceScatter(comm::Communicator& ranks, const std::string& name, std::vector<QuantizedParts> parts,
                         at::Device device, bool error_feedback);

  /// Rounds `whole` of list `index` and sends it. When done, `own`, the elements of this rank, is the sum, or has it
  /// added. `whole` may be written again at once, but for elements that `own` shares with it. May wait for earlier
  /// ones, whose buffers it takes.
  void post(size_t index, at::TensorList whole, at::TensorList own, bool accumulate);
  /// Whether post() would not wait; ends what has come.
  bool has_room();
  /// Nothing of list `index` is under way, without waiting for it.
  bool done(size_t index);
  void finish(size_t index);
  void forget_residuals();

  const QuantizedParts& parts(size_t index) const { return parts_[index]; }
  double take_waited_seconds() { return std::exchange(waited_seconds_, 0.0); }

 private:
  struct Buffer {
    SharedTensor send, receive;
  };
  struct Exchange {
    size_t index;
    size_t buffer;
    std::vector<at::Tensor> own;
    comm::Work work;
  };
  void finish_oldest();
  at::Tensor residual_of(size_t index, size_t t, int64_t rank) const;

  comm::Communicator& ranks_;
  std::vector<QuantizedParts> parts_;
  std::vector<std::vector<at::Tensor>> residuals_;  // [lists][tensors], of what goes to the other ranks
  std::vector<Buffer> buffers_;
  size_t next_buffer_ = 0;
  std::deque<Exchange> exchanges_;
  double waited_seconds_ = 0;
};

/// The sums of a model's gradients, unit by unit.
///
/// During backward nothing waits on the second axis: ranks of a copy wait there for each other on the first one, at
/// places that are the same for all of them, and a rank that stood on both could be waited for by those that it waits
/// for.
class QuantizedGradients {
 public:
  /// `replicas`: of one rank where there are no copies.
  QuantizedGradients(std::span<const Unit> units, comm::Communicator& shards, comm::Communicator& replicas,
                     at::Device device, const QuantizedGradientOptions& options);

  /// The first axis: as QuantizedReduceScatter has it. `whole` are the gradients of the unit's parameters, `shards` the
  /// rows of this rank.
  void reduce(size_t unit, at::TensorList whole, at::TensorList shards, bool accumulate) {
    over_shards_.post(unit, whole, shards, accumulate);
  }
  bool reduced(size_t unit) { return over_shards_.done(unit); }
  void finish_reduce(size_t unit) { over_shards_.finish(unit); }

  /// The second axis, in place: starts, in the same order on all copies.
  void replicate(size_t unit, at::TensorList shards);
  bool can_replicate() { return over_replicas_ == nullptr || over_replicas_->has_room(); }
  /// And ends, for all units that were started, in that order. The first axis has to be through.
  void finish_replicas();

  /// What rounding lost so far is not made up for: it is of a step that was thrown away.
  void forget_residuals();

  double take_waited_seconds();

 private:
  struct Started {
    size_t unit;
    std::vector<at::Tensor> shards;
  };
  struct Message {
    SharedTensor send, received;
    comm::Work work;
  };
  void tell(const Started& started, Message& message);

  comm::Communicator& replicas_;
  QuantizedReduceScatter over_shards_;
  std::unique_ptr<QuantizedReduceScatter> over_replicas_;  // null: one replica
  std::vector<QuantizedGather> gathers_;                   // [units], of the sums over replicas
  std::vector<std::vector<at::Tensor>> residuals_;         // [units][tensors], of this rank's part of those
  std::array<Message, 2> messages_;                        // one is made or read while the other is under way
  std::vector<Started> started_;
  double waited_seconds_ = 0;
};

}  // namespace trireme::parallel
