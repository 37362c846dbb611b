// Private to parallel: where operations leave gradients, and how they become the sums over all ranks.
//
// Three ways. Kept: the whole gradient of each unit has memory of its own, contributions of all micro-batches are added
// there, and one exchange follows the last (each rank's rows become the sum in place). Reduced at once: units take
// turns in a few buffers, and after each micro-batch the rows of each rank are added to the shard that it keeps. Used
// at once (GradientOptions::use): units take turns, their rows become the sum in place, and nothing is kept.
//
// Either may sum in one tree over all micro-batches of the step, whichever rank computes them (GradientOptions::tree).
// The sums of a rank's own micro-batches then wait for their neighbours of equal size, as in a binary counter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "parallel/quantized_gradients.h"
#include "parallel/unit.h"

namespace trireme::parallel {

struct GradientOptions {
  bool at_once = false;  ///< the second way
  bool tree = false;     ///< micro-batches and ranks are powers of two then
  /// In the type of the weights that compute, in place of that of their masters. Sums over ranks are taken in fp32 and
  /// rounded once, and so is each contribution that is added.
  bool narrow = false;
  /// The third way: called for each unit, the last of the model first, when shards(unit) are the sums over all ranks.
  /// All ranks have then read the unit's weights for the last time in this step. Steps have one micro-batch.
  std::function<void(size_t unit)> use;
  std::optional<QuantizedGradientOptions> quantized{};  ///< how contributions travel; neither in a tree nor narrow
};

class Gradients {
 public:
  /// `replicas`: the ranks that hold the same shards, over which they are summed at the end.
  Gradients(std::span<const Unit> units, comm::Communicator& shards, comm::Communicator& replicas, at::Device device,
            const GradientOptions& options);

  /// The rows that this rank holds of each parameter of unit `index`: the sum over all ranks, after finish().
  const std::vector<at::Tensor>& shards(size_t index) const { return states_[index].shards; }
  /// Whole gradients, where each unit has memory for them; otherwise empty.
  const std::vector<at::Tensor>& received(size_t index) const { return states_[index].received; }

  void begin_step(int64_t micro_batches);
  /// A contribution to unit `index` is about to be written, the first since its last exchange.
  void before_contribution(size_t index);
  /// Waits for all sums. Throws InternalError that names a parameter whose gradient did not arrive.
  void finish();

  /// Quantised, with error feedback: the step is thrown away, and with it what rounding lost.
  void forget_residuals() {
    if (quantized_ != nullptr) quantized_->forget_residuals();
  }

  /// Seconds that compute has waited here for other ranks since the last call.
  double take_waited_seconds() {
    return std::exchange(waited_seconds_, 0.0) + (quantized_ == nullptr ? 0 : quantized_->take_waited_seconds());
  }

 private:
  struct State;
  struct Buffer {
    SharedTensor memory;
    comm::Work in_use;          // the exchange that reads it
    State* occupant = nullptr;  // used at once: whose sums may still be waited for
  };
  struct State {
    const Unit* unit = nullptr;
    size_t index = 0;
    SharedTensor whole;  // kept
    SharedTensor sums;   // reduced at once
    std::vector<at::Tensor> received, shards;
    size_t buffer = 0;
    int64_t incomplete = 0;   // parameters of the present micro-batch, or of all
    int64_t rounds_left = 0;  // exchanges still to come
    bool first = true;        // no exchange of this step has been
    bool has_buffer = false;
    bool used = false;
    comm::Work reduce, replicate;
    // With a tree: sums of 2^k micro-batches that wait for their neighbours, and how many micro-batches have come.
    std::vector<at::Tensor> waiting;
    int64_t summed = 0;
    bool uncounted = false;  // a reduced shard is still to be added to them
  };

  void expect(State& state);
  void on_complete(State& state);
  void exchange(State& state);
  bool reduced(State& state);
  void count(State& state, const at::Tensor& sum);
  void count_reduced(State& state);
  void sum_over_replicas(size_t most_waiting);
  void sum_first_over_replicas();
  void use_first();
  void use_what_is_there();
  at::Tensor memory_of(const State& state) const;
  void wait(comm::Work& work);

  comm::Communicator& shards_;
  comm::Communicator& replicas_;
  bool at_once_, tree_;
  std::function<void(size_t)> use_;
  double waited_seconds_ = 0;
  int64_t micro_batches_ = 1;
  std::vector<Buffer> buffers_;
  std::deque<State> states_;
  std::unique_ptr<QuantizedGradients> quantized_;
  std::deque<State*> reducing_;  // in the order in which their last exchanges were posted
  std::deque<State*> summing_;   // used at once: whose sums over the replicas are posted
};

}  // namespace trireme::parallel
