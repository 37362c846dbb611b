// A torch::nn::Module that knows nothing of Trireme, trained by several ranks on different samples.
//
//   auto model = std::make_shared<Net>();                        // on the CPU, as always
//   parallel::ShardedModule sharded(model, shards, replicas, {.level = parallel::Level::parameters});
//   torch::optim::AdamW optimizer(sharded.parameters(), 1e-3);   // after, and not of model->parameters()
//   for (...) {
//     torch::Tensor loss = sum_of_losses(model->forward(own_samples)) / samples_of_all_ranks;
//     loss.backward();
//     sharded.clip_gradients(1.0);
//     sharded.step(optimizer);
//   }
//   sharded.save("net.pt");                                      // what torch::load reads into a plain Net
//
// What each rank keeps is the level's choice, as in data_parallel.h, with the same units, exchanges and memory. The
// module computes as before: its parameters stay the same tensors (leaves of autograd), and only their memory is ours.
//
// Contract
//  - Every rank makes the same module, the same calls here in the same order, and the same number of backward passes.
//    Weights, buffers and other tensors of the module start as rank 0's.
//  - Gradients are *summed* over the ranks: divide the loss by the samples of the whole global batch. (An average over
//    ranks would be wrong as soon as they have unequal numbers of samples.)
//  - A backward pass ends with the exchange of what it left; at the last one of a step it waits for all sums, and from
//    then to step() the tensors of parameters() have their `grad`.
//  - With Level::parameters a forward pass is collective over `shards`, and all ranks use the units in the same order:
//    checked at the end of each backward pass and before each update. A unit is there while its operations run, seen at
//    the dispatcher (use_observer.h); data_ptr() of a weight that is not there may not be read, and reading it ends the
//    process. At the other levels ranks may use different parts of the module; what one does not use has zeros there.
//  - A parameter may be used any number of times in a pass, under any number of names. A backward pass inside another
//    (recomputation of activations) may deliver to it again only before its unit has been exchanged: what comes later
//    is refused by name.
//  - The optimizer works on rows (dimension 0) of each parameter, in fp32 (fp64 for a module in double). What needs
//    whole tensors or sums over all of them is not for it: LBFGS is refused.
//  - One thread makes, uses and destroys it. Afterwards the module's parameters are empty: save first.
// Errors: InputError for what cannot be trained so, with the names of all that is in the way.
//
// Source: Zhao et al., "PyTorch FSDP", arXiv:2304.11277; Li et al., "PyTorch Distributed", arXiv:2006.15704.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "parallel/level.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme::parallel {

struct ShardedModuleOptions {
  Level level = Level::none;
  /// Names of the submodules whose parameters are exchanged together ("encoder.layers.0"); what is in none, or in
  /// several, is a unit of its own that stays. None given: the module's children, and of a ModuleList or Sequential
  /// among them its children. See submodules_of_type().
  std::optional<std::vector<std::string>> units = std::nullopt;
  /// Type of the module's weights from now on, as at::kBFloat16; what the optimizer holds stays fp32. None: theirs.
  std::optional<at::ScalarType> compute_dtype = std::nullopt;
  int64_t prefetch = 1;               ///< parameters: units gathered ahead of their use
  bool reshard_after_forward = true;  ///< parameters: whether units are gathered again for backward
  /// gradients, parameters: exchange gradients after each backward pass of a step. Otherwise they are kept whole until
  /// the last.
  bool reduce_every_micro_batch = true;
  /// After each update buffers (a BatchNorm's running statistics) become rank 0's; otherwise they are each rank's own,
  /// and rank 0's are what is saved.
  bool broadcast_buffers = true;
};

class ShardedModule {
 public:
  /// `shards` are the ranks that divide, `replicas` those that hold the same share (level none: `shards` is of one
  /// rank). Both must outlive this and whatever holds tensors of parameters(). Collective.
  ShardedModule(std::shared_ptr<torch::nn::Module> module, comm::Communicator& shards, comm::Communicator& replicas,
                const ShardedModuleOptions& options = {});
  ~ShardedModule();
  ShardedModule(const ShardedModule&) = delete;
  ShardedModule& operator=(const ShardedModule&) = delete;

  /// For an optimizer: what this rank updates of each parameter that asks for a gradient. [rows of this rank, ...]
  std::vector<at::Tensor> parameters() const;
  /// The same with their names, for groups with options of their own. A tied weight has the first of its names.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;

  /// The next `backward_passes` make one update (accumulation). Without the call it is one pass.
  void begin_step(int64_t backward_passes);
  /// Of the gradients of all ranks' parameters, in double: sqrt(sum of squares). After the last backward pass.
  /// Collective.
  double gradient_norm();
  /// Scales the gradients so that their norm is at most `max_norm`, as torch::nn::utils::clip_grad_norm_ does; returns
  /// the norm before. Collective.
  double clip_gradients(double max_norm);
  /// One update, and the weights that follow from it. Refuses an optimizer of other tensors than parameters().
  /// Collective.
  void step(torch::optim::Optimizer& optimizer);
  /// The same with an update of your own, which changes tensors of parameters(). Collective.
  void update(const std::function<void()>& change);

  /// A whole parameter, or the sum of its gradient after the last backward pass, by any of its names. Collective.
  at::Tensor gather_parameter(const std::string& name);
  at::Tensor gather_gradient(const std::string& name);

  /// Runs `body` while the module's parameters are whole, plain tensors in the optimizer's type on every rank:
  /// anything may read them. With `keep` what it leaves in them (rank 0's) becomes the weights. Collective.
  void with_whole_parameters(const std::function<void()>& body, bool keep = false);
  /// Rank 0 writes what torch::save(module) would write of the plain module, in the optimizer's type; by way of a
  /// temporary file beside it. Only rank 0 holds the whole. Collective.
  void save(const std::string& path);
  /// torch::load on every rank. The state of an optimizer is its owner's business. Collective.
  void load(const std::string& path);

  /// For a person: the units with their parameters and how many elements this rank holds.
  std::string table() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Names of the submodules for which `wanted` says so, in the order of the module.
std::vector<std::string> submodules(const torch::nn::Module& module,
                                    const std::function<bool(const torch::nn::Module&)>& wanted);
/// Those of a type, as torch::nn::TransformerEncoderLayerImpl.
template <typename Layer>
std::vector<std::string> submodules_of_type(const torch::nn::Module& module) {
  return submodules(module, [](const auto& inner) { return dynamic_cast<const Layer*>(&inner) != nullptr; });
}

}  // namespace trireme::parallel
