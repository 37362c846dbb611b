#include "parallel/data_parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numeric>

#include "base/error.h"
#include "parallel/gradients.h"
#include "parallel/unit.h"
#include "parallel/weights.h"

namespace trireme::parallel {
namespace {

// The `size` ranks of `ranks` around this one that lie next to each other.
std::shared_ptr<comm::Communicator> neighbours_in(comm::Communicator& ranks, int64_t size) {
  TRIREME_CHECK(ranks.size() % size == 0, "{} ranks in groups of {}", ranks.size(), size);
  std::vector<int64_t> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), ranks.rank() / size * size);
  return ranks.subgroup(members, "second_shard");
}

}  // namespace

DataParallel::DataParallel(models::Model& model, comm::Communicator& shards, comm::Communicator& replicas,
                           at::Device device, const DataParallelOptions& options)
    : model_(model), shards_(shards), replicas_(replicas), options_(options) {
  TRIREME_CHECK(options.level != Level::none || shards.size() == 1, "level none divides nothing among {} ranks",
                shards.size());
  const at::NoGradGuard no_grad;
  for (const nn::Unit& unit : model.units()) units_.emplace_back(unit, shards.rank(), shards.size());
  TRIREME_CHECK(options.level == Level::parameters || (options.second_shard_ranks == 0 && !options.quantized_weights),
                "a second shard, or weights that travel quantised, where weights are not gathered");
  TRIREME_CHECK(options.level != Level::none || !options.quantized_gradients,
                "gradients that travel quantised to the ranks that divide a copy, and nothing is divided");
  TRIREME_CHECK(!options.quantized_weights || !options.master_memory,
                "what is gathered quantised is made of master weights, and those are elsewhere");
  if (options.second_shard_ranks > 0) neighbours_ = neighbours_in(shards, options.second_shard_ranks);
  if (options.level == Level::parameters)
    weights_ = make_gathered_weights(units_, shards, device,
                                     {options.prefetch, options.reshard_after_forward, neighbours_.get(),
                                      options.quantized_weights, options.master_memory});
  else
    weights_ = make_resident_weights(units_, shards, device, options.master_memory);
  const bool at_once = options.level >= Level::gradients && options.reduce_every_micro_batch && !options.use_at_once;
  for (const nn::Unit& unit : model.units()) {
    nn::Unit trainable{unit.name, {}};
    for (nn::Parameter* parameter : unit.parameters)
      if (parameter->trainable()) trainable.parameters.push_back(parameter);
    if (!trainable.parameters.empty()) trainable_units_.emplace_back(trainable, shards.rank(), shards.size());
  }
  GradientOptions how;
  how.at_once = at_once;
  how.tree = options.tree;
  how.narrow = options.narrow_gradients;
  if (options.use_at_once) how.use = [this](size_t unit) { use_(trainable_units_[unit].parameters); };
  if (options.quantized_gradients)
    how.quantized = QuantizedGradientOptions{*options.quantized_gradients, options.error_feedback};
  gradients_ = std::make_unique<Gradients>(trainable_units_, shards, replicas, device, how);
  struct Received {
    at::Tensor gradient, whole;
  };
  std::unordered_map<const nn::Parameter*, Received> received;
  for (size_t u = 0; u < trainable_units_.size(); ++u) {
    const Unit& unit = trainable_units_[u];
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      received[unit.parameters[i]] = {gradients_->shards(u)[i], at_once ? at::Tensor() : gradients_->received(u)[i]};
      trainable_unit_of_[unit.parameters[i]] = u;
    }
  }
  for (size_t u = 0; u < units_.size(); ++u) {
    const Unit& unit = units_[u];
    const Weights::Memory& memory = weights_->memory(u);
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      const Received& own = received[unit.parameters[i]];  // nothing of a frozen one
      unit.parameters[i]->bind({.value = memory.values[i],
                                .rows = unit.rows[i],
                                .master = memory.masters[i],
                                .copy = memory.copies[i],
                                .gradient = own.gradient,
                                .received = own.whole,
                                .owner = this});
      unit_of_[unit.parameters[i]] = u;
    }
  }
  model.set_observer(options.level == Level::parameters ? weights_.get() : nullptr);
  model.prepare(device);
}

DataParallel::~DataParallel() { model_.set_observer(nullptr); }

void DataParallel::initialize(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (const nn::Parameter* parameter : model_.parameters()) {
    const at::Tensor flat = parameter->master().view({-1});
    for (const nn::Fragment& fragment : parameter->fragments()) {
      const int64_t first = fragment.offset[0] * parameter->row_elements();
      nn::initialize(*fragment.logical, first, flat.narrow(0, fragment.local_offset, fragment.elements()), seed);
    }
  }
  refresh_weights();
}

void DataParallel::refresh_weights() { weights_->refresh(); }
void DataParallel::publish_weights() { weights_->publish(); }

DataParallel::Substitution::Substitution(DataParallel& data_parallel, std::span<const at::Tensor> values)
    : data_parallel_(data_parallel) {
  data_parallel_.weights_->substitute(values);
}

void DataParallel::Substitution::end() { data_parallel_.weights_->restore(); }

at::Tensor DataParallel::gather(const nn::Parameter& parameter, const at::Tensor& held) const {
  if (shards_.size() == 1) return held;
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < shards_.size(); ++r)
    rows.push_back(nn::rows_of_rank(parameter.shape()[0], r, shards_.size()).size());
  at::Tensor whole = at::empty(parameter.shape(), held.options());
  shards_.all_gather_v(whole, held, rows);
  return whole;
}

int64_t MicroBatchOrder::index(int64_t batch, int64_t batches) const {
  if (ranks_first) return (replica * batches + batch) * shards + shard;
  return (replica * shards + shard) * batches + batch;
}

MicroBatchOrder DataParallel::micro_batch_order() const {
  return {.replica = replicas_.rank(),
          .shard = shards_.rank(),
          .shards = shards_.size(),
          .ranks_first = options_.level >= Level::gradients && options_.reduce_every_micro_batch};
}

void DataParallel::begin_step(int64_t micro_batches, Use use) {
  TRIREME_CHECK(options_.use_at_once == static_cast<bool>(use) && (!use || micro_batches == 1),
                "gradients of {} micro-batches that are {}used at once", micro_batches, use ? "" : "not ");
  use_ = std::move(use);
  weights_->take_waited_seconds();
  gradients_->take_waited_seconds();
  gradients_->begin_step(micro_batches);
}

void DataParallel::finish_gradients() {
  gradients_->finish();
  exposed_seconds_ = weights_->take_waited_seconds() + gradients_->take_waited_seconds();
}

void DataParallel::discard_step() { gradients_->forget_residuals(); }

void DataParallel::before_use(const nn::Parameter& parameter) { weights_->use(unit_of_.at(&parameter)); }
void DataParallel::before_gradient(nn::Parameter& parameter) {
  gradients_->before_contribution(trainable_unit_of_.at(&parameter));
}

}  // namespace trireme::parallel
