// Data parallelism: ranks that train one model on different samples. One mechanism, four levels of what they divide.
//
//   level         each rank holds of            whole on each rank (weights: once a machine)
//                 its shard axis a share of
//   none          nothing                       weights, gradients, master weights, moments     DistributedDataParallel
//   optimizer     master weights, moments       weights, gradients                              ZeRO-1
//   gradients     and gradients                 weights; gradients of two blocks and the ends   ZeRO-2
//   parameters    and weights                   weights and gradients of two blocks, the ends   ZeRO-3, FSDP
// The ends are the units that are not of blocks: embedding, final norm, head.
// (Rajbhandari et al., "ZeRO", arXiv:1910.02054; Zhao et al., "PyTorch FSDP", arXiv:2304.11277.)
//
// A second axis replicates: its ranks hold the same shards, and sum their gradients (hybrid sharding).
//
// Units are the grain (the embedding; each block; final norm with head): their weights are gathered together, and their
// gradients reduced together, posted as soon as the last of them is complete, while backward goes on. A gradient is
// complete by count, not by hook: uses x micro-batches contributions (see nn/parameter.h). Every reducer sums and
// nothing divides: the loss is already scaled by 1 / valid tokens of the whole global batch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "comm/communicator.h"
#include "models/model.h"
#include "ops/quantize.h"
#include "parallel/level.h"

namespace trireme::parallel {

struct Unit;
class Weights;
class Gradients;

struct DataParallelOptions {
  Level level = Level::none;
  int64_t prefetch = 1;               ///< parameters: units gathered ahead of their use
  bool reshard_after_forward = true;  ///< parameters: whether blocks are gathered again for backward
  /// parameters, with the above: so many neighbours of the shard axis keep what was gathered as a second shard, and
  /// gather from that until the weights change. It divides the ranks of the shard axis. 0: none.
  int64_t second_shard_ranks = 0;
  std::optional<ops::QuantizedFormat> quantized_weights{};    ///< parameters: in which they travel
  std::optional<ops::QuantizedFormat> quantized_gradients{};  ///< all but none, without tree: likewise
  bool error_feedback = false;                                ///< of quantised gradients
  /// gradients, parameters: exchange gradients after each micro-batch. Otherwise they are kept whole until the last.
  bool reduce_every_micro_batch = true;
  /// Sums go in one tree over the micro-batches of all ranks, so that their number changes no bit. Numbers of ranks and
  /// of micro-batches are powers of two, and micro_batch_order() says who computes which.
  bool tree = false;
  /// Where zeros for master weights come from, where the weights that compute are another tensor: memory that is not
  /// the device's. Empty: beside the rest. With level parameters gathers are then of a copy of the shard in the type
  /// that computes, not of the masters.
  std::function<at::Tensor(at::IntArrayRef sizes, at::ScalarType dtype)> master_memory{};
  bool narrow_gradients = false;  ///< in the type that computes, bf16, in place of fp32
  /// Gradients are there for one unit at a time, and are used at once: see begin_step(). Steps have one micro-batch.
  bool use_at_once = false;
};

/// Which of a step's micro-batches over all ranks are a rank's own, where sums go in a tree: what is summed first lies
/// together.
struct MicroBatchOrder {
  int64_t replica = 0, shard = 0, shards = 1;
  bool ranks_first = false;  ///< gradients are reduced after each micro-batch
  /// Of this rank's `batch` of `batches`.
  int64_t index(int64_t batch, int64_t batches) const;
};

class DataParallel final : public nn::ParameterOwner {
 public:
  /// Gives the model's parameters memory on `device`, zeros at first; no rank ever holds more of them than its level
  /// says. `shards` are the ranks that divide, `replicas` those that hold the same share (level none: `shards` is of
  /// one rank). Both must outlive this. Collective in effect.
  DataParallel(models::Model& model, comm::Communicator& shards, comm::Communicator& replicas, at::Device device,
               const DataParallelOptions& options = {});
  ~DataParallel() override;

  /// Initial values, the same on every rank by construction. A run that loads weights goes without: drawing them takes
  /// longer than reading.
  void initialize(uint64_t seed);
  /// The masters have been written from elsewhere (a checkpoint). Collective, and nobody may be reading weights.
  void refresh_weights();
  /// The optimizer has changed the masters and their copies. Collective. All ranks must have met since their last
  /// backward pass, since weights are written where peers read them.
  void publish_weights();

  /// From here until end(), the model computes with other values than its weights (their moving averages): one tensor
  /// for each of Model::parameters(), in the shape of its master. Afterwards with its weights again, in every bit. Both
  /// ends are collective; without end(), as when an evaluation throws and the peers may be anywhere, the values stay.
  class Substitution {
   public:
    Substitution(DataParallel& data_parallel, std::span<const at::Tensor> values);
    void end();

   private:
    DataParallel& data_parallel_;
  };

  /// Before the first forward of a step that has `micro_batches` of them. With use_at_once, `use` is called during
  /// backward with trainable parameters whose gradient() is the sum over all ranks, and is it until `use` returns. The
  /// ranks of shards() and replicas() have then read the parameters' values for the last time in this step, so `use`
  /// may write masters and copies.
  using Use = std::function<void(std::span<nn::Parameter* const> parameters)>;
  void begin_step(int64_t micro_batches, Use use = {});
  /// Waits for all sums. Throws InternalError that names a parameter whose gradient did not arrive.
  void finish_gradients();
  /// In place of an update: what this step left for the next ones (error feedback) is forgotten.
  void discard_step();

  /// Of options.tree.
  MicroBatchOrder micro_batch_order() const;

  Level level() const { return options_.level; }
  /// The ranks that hold the other shares of what this one holds, and those that hold the same.
  comm::Communicator& shards() const { return shards_; }
  comm::Communicator& replicas() const { return replicas_; }
  /// Those that keep a second shard; null: nobody.
  comm::Communicator* neighbours() const { return neighbours_.get(); }
  /// Whether a forward pass is collective: all ranks of `shards` have to make the same ones.
  bool forward_is_collective() const { return options_.level == Level::parameters && shards_.size() > 1; }

  /// A whole parameter from what the ranks hold of it: `held` lies as its master does. Collective over shards().
  at::Tensor gather(const nn::Parameter& parameter, const at::Tensor& held) const;

  /// Seconds of the last step that compute waited for communication: what it did not hide.
  double exposed_seconds() const { return exposed_seconds_; }

  void before_use(const nn::Parameter& parameter) override;
  void before_gradient(nn::Parameter& parameter) override;

 private:
  models::Model& model_;
  comm::Communicator& shards_;
  comm::Communicator& replicas_;
  DataParallelOptions options_;
  std::shared_ptr<comm::Communicator> neighbours_;  // with a second shard
  std::vector<Unit> units_, trainable_units_;       // the latter without what is frozen
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Gradients> gradients_;
  std::unordered_map<const nn::Parameter*, size_t> unit_of_, trainable_unit_of_;
  Use use_;
  double exposed_seconds_ = 0;
};

}  // namespace trireme::parallel
