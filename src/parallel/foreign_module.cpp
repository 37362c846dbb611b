#include "parallel/foreign_module.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/hash.h"
#include "nn/parameter.h"
#include "ops/dispatch.h"
#include "parallel/foreign_units.h"
#include "parallel/gradients.h"
#include "parallel/unit.h"
#include "parallel/use_observer.h"
#include "parallel/weights.h"

namespace trireme::parallel {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);

std::vector<int64_t> rows_and_more(const std::vector<int64_t>& sizes) {
  return sizes.empty() ? std::vector<int64_t>{1} : sizes;  // a scalar is one row
}

class ArrivalHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit ArrivalHook(std::function<void()> arrived) : arrived_(std::move(arrived)) {}
  void operator()(const at::Tensor& /*leaf*/) override { arrived_(); }

 private:
  std::function<void()> arrived_;
};

}  // namespace

// Gradients go from autograd to their exchange unit by unit, in an order that all ranks share: that in which rank 0
// completed them in the last pass of the first step. So what a rank does not use, or uses earlier than another, changes
// nothing.
class ShardedModule::Impl final : public UseObserver, public nn::ParameterOwner {
 public:
  Impl(std::shared_ptr<torch::nn::Module> module, comm::Communicator& shards, comm::Communicator& replicas,
       const ShardedModuleOptions& options);
  ~Impl() override;

  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  void begin_step(int64_t passes);
  double gradient_norm();
  double clip_gradients(double max_norm);
  void step(torch::optim::Optimizer& optimizer);
  void update(const std::function<void()>& change);
  at::Tensor gather_parameter(const std::string& name);
  at::Tensor gather_gradient(const std::string& name);
  void with_whole_parameters(const std::function<void()>& body, bool keep);
  void save(const std::string& path);
  void load(const std::string& path);
  std::string table() const;

  void before_use(std::span<const size_t> units, const std::string& operation) override;
  std::string describe(size_t unit) const override { return fmt::format("a weight of the unit {}", units_[unit].name); }
  void before_use(const nn::Parameter& /*parameter*/) override {}
  void before_gradient(nn::Parameter& parameter) override {
    gradients_->before_contribution(places_.at(&parameter).trained);
  }

 private:
  // Where a parameter is: unit and position in it; the same among what is trained (kNone: frozen).
  struct Place {
    size_t unit = kNone, at = kNone, trained = kNone, trained_at = kNone;
  };
  // A unit in the present backward pass.
  struct Arrivals {
    std::vector<std::vector<bool>> arrived;  // [parameter][leaf]
    size_t missing = 0;
    bool exchanged = false;
  };

  void check_options() const;
  void require_same_module() const;
  void broadcast(const at::Tensor& tensor) const;
  void make_parameters();
  void make_units();
  void take_over();
  void watch_gradients();

  void arrived(size_t parameter, size_t leaf);
  void begin_pass(const std::string& name);
  void exchange_in_order();
  void exchange(size_t unit);
  void end_pass();
  void learn_order();

  void require_gradients(const char* what) const;
  void require_untouched() const;
  void note_versions();
  void check_sequences();
  void publish();
  void make_current();
  void give_back();
  void give(const nn::Parameter& parameter, const at::Tensor& whole);
  at::Tensor gather(const nn::Parameter& parameter, const at::Tensor& held) const;
  size_t index_of(const std::string& name) const;
  bool is_first() const { return shards_.rank() == 0 && replicas_.rank() == 0; }
  bool forward_is_collective() const { return options_.level == Level::parameters && shards_.size() > 1; }

  std::shared_ptr<torch::nn::Module> module_;
  comm::Communicator& shards_;
  comm::Communicator& replicas_;
  ShardedModuleOptions options_;
  ForeignModule foreign_;
  std::vector<std::unique_ptr<nn::Parameter>> parameters_;  // as those of foreign_
  std::vector<Unit> units_, trained_units_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Gradients> gradients_;
  std::unordered_map<const nn::Parameter*, Place> places_;
  std::unordered_map<const nn::Parameter*, size_t> indices_;
  std::vector<at::Tensor> own_;                  // what the optimizer updates; undefined: frozen
  std::vector<std::vector<uint32_t>> versions_;  // [parameter][leaf]: of autograd, which our own writes do not raise

  // Of a step.
  bool open_ = false, complete_ = false, in_pass_ = false, learned_ = false;
  int64_t announced_ = 1, passes_ = 0;
  std::vector<Arrivals> arrivals_;         // of trained_units_
  std::vector<size_t> order_, completed_;  // in which units are exchanged; in which they were complete
  size_t next_ = 0;                        // in order_

  // Of uses, where weights are gathered.
  uint64_t sequence_ = 0;  // a hash of the units used since ranks last compared it
  size_t last_ = kNone;    // unit that was used last, and is there
  size_t first_ = kNone;   // unit that the present pass used first
  bool evaluates_ = false;
};

ShardedModule::Impl::Impl(std::shared_ptr<torch::nn::Module> module, comm::Communicator& shards,
                          comm::Communicator& replicas, const ShardedModuleOptions& options)
    : module_(std::move(module)),
      shards_(shards),
      replicas_(replicas),
      options_(options),
      foreign_(take_apart(*module_, options.units)) {
  const at::NoGradGuard no_grad;
  const UnobservedScope unobserved;  // another module may be watched
  check_options();
  require_same_module();
  for (const ForeignParameter& parameter : foreign_.parameters) broadcast(parameter.leaves.front());
  for (const at::Tensor& tensor : foreign_.constants) broadcast(tensor);
  for (const at::Tensor& tensor : foreign_.buffers) broadcast(tensor);
  make_parameters();
  make_units();
  take_over();
  watch_gradients();
}

ShardedModule::Impl::~Impl() {
  const UnobservedScope unobserved;  // the ranks may be anywhere: no weight is gathered any more
  for (const ForeignParameter& parameter : foreign_.parameters) {
    for (const at::Tensor& leaf : parameter.leaves) {
      if (parameter.trainable) torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
      at::Tensor(leaf).set_data(at::empty({0}, leaf.options().requires_grad(false)));
    }
  }
}

void ShardedModule::Impl::check_options() const {
  std::vector<std::string> faults;
  if (options_.level == Level::none && shards_.size() > 1)
    faults.push_back(
        fmt::format("level none divides nothing, and shards are {} ranks: give a communicator of one rank "
                    "(a mesh with shard = 1) and these as replicas, or another level",
                    shards_.size()));
  if (options_.prefetch < 0) faults.push_back(fmt::format("prefetch = {}; 0 or more works", options_.prefetch));
  if (options_.compute_dtype) {
    const at::ScalarType dtype = *options_.compute_dtype;
    const bool known = dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
    if (!known)
      faults.push_back(fmt::format("compute_dtype = {}; Float, Double, BFloat16 and Half work", c10::toString(dtype)));
    else if (foreign_.dtype == at::kDouble && dtype != at::kDouble)
      faults.push_back(
          fmt::format("compute_dtype = {} for a module in Double, which the optimizer would hold in Float: "
                      "module->to(torch::kFloat) first",
                      c10::toString(dtype)));
  }
  if (!faults.empty()) throw InputError(faults);
}

void ShardedModule::Impl::require_same_module() const {
  std::string text;
  for (const ForeignUnit& unit : foreign_.units) {
    text += unit.name + ":";
    for (const size_t i : unit.parameters) {
      const ForeignParameter& parameter = foreign_.parameters[i];
      text += fmt::format("{} {} {};", fmt::join(parameter.names, "="), fmt::join(parameter.sizes, "x"),
                          parameter.trainable);
    }
  }
  text += fmt::format("{} {} {} {}", foreign_.buffers.size(), foreign_.constants.size(),
                      static_cast<int>(options_.level), c10::toString(foreign_.dtype));
  const auto own = static_cast<int64_t>(hash64(text) >> 1);
  for (comm::Communicator* ranks : {&shards_, &replicas_}) {
    if (ranks->all_reduce_scalar(own, comm::ReduceOp::max) == ranks->all_reduce_scalar(own, comm::ReduceOp::min))
      continue;
    std::string list;
    const std::vector<std::string> all = ranks->all_gather_strings(text.substr(0, 400));
    for (size_t r = 0; r < all.size(); ++r) list += fmt::format("\n  rank {} of {}: {}", r, ranks->axis(), all[r]);
    throw_input("the ranks do not have the same module, level and units:{}", list);
  }
}

// Rank 0's values, on all ranks: first along the copy that it is in, then from each of its ranks to the others'.
void ShardedModule::Impl::broadcast(const at::Tensor& tensor) const {
  const at::Tensor data = tensor.detach();
  const at::Tensor sent = data.contiguous();
  shards_.broadcast(sent, 0);
  replicas_.broadcast(sent, 0);
  if (!sent.is_same(data)) data.copy_(sent);
}

void ShardedModule::Impl::make_parameters() {
  const at::ScalarType dtype = options_.compute_dtype.value_or(foreign_.dtype);
  for (const ForeignParameter& from : foreign_.parameters) {
    std::vector<nn::LogicalTensor> parts = {{from.names.front(), rows_and_more(from.sizes), {}, true}};
    parameters_.push_back(std::make_unique<nn::Parameter>(std::move(parts), dtype));
    if (!from.trainable) parameters_.back()->freeze();
    indices_[parameters_.back().get()] = parameters_.size() - 1;
  }
}

void ShardedModule::Impl::make_units() {
  int64_t blocks = 0;
  for (const ForeignUnit& from : foreign_.units) {
    nn::Unit all{from.name, {}}, trained{from.name, {}};
    for (const size_t i : from.parameters) {
      nn::Parameter* parameter = parameters_[i].get();
      Place& place = places_[parameter];
      place = {units_.size(), all.parameters.size(), kNone, kNone};
      all.parameters.push_back(parameter);
      if (!parameter->trainable()) continue;
      place.trained = trained_units_.size();
      place.trained_at = trained.parameters.size();
      trained.parameters.push_back(parameter);
    }
    // Units that stay have no block; the others take turns in memory, neighbours in different places.
    const int64_t block = from.rest ? -1 : blocks++;
    units_.emplace_back(all, shards_.rank(), shards_.size()).block = block;
    if (!trained.parameters.empty()) trained_units_.emplace_back(trained, shards_.rank(), shards_.size()).block = block;
  }
  const bool at_once = options_.level >= Level::gradients && options_.reduce_every_micro_batch;
  if (options_.level == Level::parameters)
    weights_ =
        make_gathered_weights(units_, shards_, at::kCPU,
                              {.prefetch = options_.prefetch, .reshard_after_forward = options_.reshard_after_forward});
  else
    weights_ = make_resident_weights(units_, shards_, at::kCPU);
  GradientOptions how;
  how.at_once = at_once;
  gradients_ = std::make_unique<Gradients>(trained_units_, shards_, replicas_, at::kCPU, how);
}

// From here on the module's tensors have our memory.
void ShardedModule::Impl::take_over() {
  const bool at_once = options_.level >= Level::gradients && options_.reduce_every_micro_batch;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& parameter = *parameters_[i];
    const Place& place = places_.at(&parameter);
    const Unit& unit = units_[place.unit];
    const Weights::Memory& memory = weights_->memory(place.unit);
    const nn::Rows rows = unit.rows[place.at];
    nn::Parameter::Memory bound;
    bound.value = memory.values[place.at];
    bound.rows = rows;
    bound.master = memory.masters[place.at];
    bound.copy = memory.copies[place.at];
    bound.owner = this;
    if (parameter.trainable()) {
      bound.gradient = gradients_->shards(place.trained)[place.trained_at];
      if (!at_once) bound.received = gradients_->received(place.trained)[place.trained_at];
    }
    parameter.bind(std::move(bound));
    const at::Tensor whole = foreign_.parameters[i].leaves.front().detach().reshape(parameter.shape());
    parameter.master().copy_(whole.narrow(0, rows.begin, rows.size()));
    give(parameter, parameter.value());
    own_.push_back(parameter.trainable() ? parameter.master().variable_data().requires_grad_() : at::Tensor());
  }
  weights_->refresh();
  make_current();
  note_versions();
  if (options_.level != Level::parameters) return;
  for (size_t u = 0; u < units_.size(); ++u) watch(weights_->memory(u).values.front(), u);
}

void ShardedModule::Impl::watch_gradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ForeignParameter& parameter = foreign_.parameters[i];
    if (!parameter.trainable) continue;
    for (size_t leaf = 0; leaf < parameter.leaves.size(); ++leaf) {
      at::Tensor(parameter.leaves[leaf]).mutable_grad().reset();
      torch::autograd::impl::set_post_acc_grad_hooks(
          parameter.leaves[leaf], std::make_unique<ArrivalHook>([this, i, leaf] { arrived(i, leaf); }));
    }
  }
  arrivals_.resize(trained_units_.size());
  // Until a backward pass has shown a better one: the last unit first, and the rest, which holds both ends, at the end.
  for (size_t t = trained_units_.size(); t-- > 0;) order_.push_back(t);
}

std::vector<std::pair<std::string, at::Tensor>> ShardedModule::Impl::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (size_t i = 0; i < own_.size(); ++i)
    if (own_[i].defined()) result.emplace_back(foreign_.parameters[i].names.front(), own_[i]);
  return result;
}

void ShardedModule::Impl::begin_step(int64_t passes) {
  if (passes < 1) throw_input("begin_step({}): a step has at least one backward pass", passes);
  if (open_ && !complete_ && passes_ > 0)
    throw_input("begin_step({}) after {} of {} backward passes: what they left would be lost", passes, passes_,
                announced_);
  announced_ = passes;
  passes_ = 0;
  open_ = true;
  complete_ = false;
  // They are what is about to be written: an optimizer's zero_grad() between two passes must not reach it.
  for (const at::Tensor& own : own_)
    if (own.defined()) own.mutable_grad().reset();
  gradients_->begin_step(passes);
}

// A leaf has its gradient of this pass, or more of it.
void ShardedModule::Impl::arrived(size_t index, size_t leaf) {
  const at::NoGradGuard no_grad;
  const UnobservedScope unobserved;
  const ForeignParameter& parameter = foreign_.parameters[index];
  if (parameter.leaves[leaf].grad().layout() != at::kStrided)
    throw_input("the gradient of {} is sparse; an embedding with sparse(false) works", parameter.names.front());
  if (!in_pass_) begin_pass(parameter.names.front());
  const Place& place = places_.at(parameters_[index].get());
  Arrivals& arrivals = arrivals_[place.trained];
  if (arrivals.exchanged)
    throw_input(
        "a second gradient of {} came after its unit {} had been exchanged: a backward pass inside another "
        "(recomputation) may use a weight again only within one unit; put what uses it into one unit, or into none",
        parameter.names.front(), trained_units_[place.trained].name);
  if (arrivals.arrived[place.trained_at][leaf]) return;  // added to what is there
  arrivals.arrived[place.trained_at][leaf] = true;
  if (--arrivals.missing > 0) return;
  completed_.push_back(place.trained);
  exchange_in_order();
}

void ShardedModule::Impl::begin_pass(const std::string& name) {
  require_untouched();
  if (!open_) begin_step(1);
  if (complete_)
    throw_input(
        "a gradient of {} came after the last of the step's {} backward passes: begin_step(n) tells of n passes, and "
        "step() ends a step (a backward pass inside another, of recomputation, counts as one of its own when it is the "
        "first to reach a weight)",
        name, announced_);
  in_pass_ = true;
  next_ = 0;
  completed_.clear();
  for (size_t t = 0; t < trained_units_.size(); ++t) {
    Arrivals& arrivals = arrivals_[t];
    arrivals = {};
    for (const nn::Parameter* parameter : trained_units_[t].parameters) {
      const size_t leaves = foreign_.parameters[indices_.at(parameter)].leaves.size();
      arrivals.arrived.emplace_back(leaves, false);
      arrivals.missing += leaves;
    }
  }
  torch::autograd::Engine::get_default_engine().queue_callback([this] { end_pass(); });
}

void ShardedModule::Impl::exchange_in_order() {
  while (next_ < order_.size() && arrivals_[order_[next_]].missing == 0) exchange(order_[next_++]);
}

// What autograd has left goes to where it is reduced; zeros where it left nothing.
void ShardedModule::Impl::exchange(size_t unit) {
  arrivals_[unit].exchanged = true;
  for (nn::Parameter* parameter : trained_units_[unit].parameters) {
    const ops::GradientTarget target = parameter->target();
    bool add = target.accumulate;
    for (const at::Tensor& leaf : foreign_.parameters[indices_.at(parameter)].leaves) {
      at::Tensor& gradient = at::Tensor(leaf).mutable_grad();
      if (!gradient.defined()) continue;
      const at::Tensor shaped = gradient.reshape(parameter->shape());
      if (add)
        target.buffer.add_(shaped);
      else
        target.buffer.copy_(shaped);
      add = true;
      gradient.reset();
    }
    if (!add) target.buffer.zero_();
    parameter->delivered();
  }
}

// Called by autograd when nothing is left to do in the pass.
void ShardedModule::Impl::end_pass() {
  const at::NoGradGuard no_grad;
  const UnobservedScope unobserved;
  in_pass_ = false;
  last_ = kNone;
  while (next_ < order_.size()) exchange(order_[next_++]);
  ++passes_;
  check_sequences();
  weights_->before_forward();
  first_ = kNone;
  if (passes_ < announced_) return;
  gradients_->finish();
  // Not before: sums over replicas are posted as soon as those over shards have come, on each rank at its own time.
  if (!learned_) learn_order();
  for (size_t i = 0; i < own_.size(); ++i)
    if (own_[i].defined()) own_[i].mutable_grad() = parameters_[i]->gradient();
  complete_ = true;
}

void ShardedModule::Impl::learn_order() {
  learned_ = true;
  for (const size_t t : order_)
    if (std::find(completed_.begin(), completed_.end(), t) == completed_.end()) completed_.push_back(t);
  const at::Tensor order = at::empty({static_cast<int64_t>(completed_.size())}, at::kLong);
  std::copy(completed_.begin(), completed_.end(), order.mutable_data_ptr<int64_t>());
  broadcast(order);
  const auto* first = order.const_data_ptr<int64_t>();
  order_.assign(first, first + order.numel());
}

void ShardedModule::Impl::require_gradients(const char* what) const {
  if (complete_) return;
  throw_input("{} after {} of the step's {} backward passes{}", what, open_ ? passes_ : 0, announced_,
              in_pass_ ? ", one of which did not end" : "");
}

double ShardedModule::Impl::gradient_norm() {
  require_gradients("gradient_norm()");
  double sum = 0;
  for (const at::Tensor& own : own_)
    if (own.defined() && own.numel() > 0)
      sum += std::pow(at::linalg_vector_norm(own.grad(), 2, std::nullopt, false, at::kDouble).item<double>(), 2);
  return std::sqrt(shards_.all_reduce_scalar(sum));
}

double ShardedModule::Impl::clip_gradients(double max_norm) {
  if (!(max_norm > 0)) throw_input("clip_gradients({}): the largest norm has to be above 0", max_norm);
  const double norm = gradient_norm();
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  for (const at::Tensor& own : own_)
    if (own.defined()) own.grad().mul_(factor);
  return norm;
}

void ShardedModule::Impl::step(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr)
    throw_input(
        "LBFGS takes inner products over whole parameters, and each rank has rows of them; optimizers that update "
        "element by element work: Adam, AdamW, SGD, RMSprop, Adagrad");
  std::unordered_set<const at::TensorImpl*> own;
  for (const at::Tensor& tensor : own_)
    if (tensor.defined()) own.insert(tensor.unsafeGetTensorImpl());
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& tensor : group.params())
      if (!own.contains(tensor.unsafeGetTensorImpl()))
        throw_input(
            "the optimizer holds a tensor of shape [{}] that is none of parameters(): make it of "
            "ShardedModule::parameters(), not of the module's",
            fmt::join(tensor.sizes(), ", "));
  update([&] { static_cast<void>(optimizer.step()); });
}

// The module's tensors still have our memory, and nobody else has written it: what another writes is read by other
// ranks, once for each that writes, or is lost with the next update.
void ShardedModule::Impl::require_untouched() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ForeignParameter& foreign = foreign_.parameters[i];
    const at::Tensor& value = parameters_[i]->value();
    for (size_t l = 0; l < foreign.leaves.size(); ++l) {
      const at::Tensor& leaf = foreign.leaves[l];
      const bool ours = leaf.is_alias_of(value) && leaf.scalar_type() == value.scalar_type() &&
                        leaf.storage_offset() == value.storage_offset() && leaf.sizes() == foreign.sizes;
      if (!ours)
        throw_input(
            "{} has other memory than it was given when the module was taken over (module->to(), torch::load and "
            "set_data do that): what forward reads is no longer what is trained. Convert before, and load with "
            "ShardedModule::load",
            foreign.names[l < foreign.names.size() ? l : 0]);
      if (leaf._version() != versions_[i][l])
        throw_input(
            "{} was written in place since the last update: ranks share its memory, or have copies of it. Change "
            "weights in update() or with_whole_parameters()",
            foreign.names[l < foreign.names.size() ? l : 0]);
    }
  }
}

void ShardedModule::Impl::note_versions() {
  versions_.clear();
  for (const ForeignParameter& foreign : foreign_.parameters) {
    std::vector<uint32_t>& versions = versions_.emplace_back();
    for (const at::Tensor& leaf : foreign.leaves) versions.push_back(static_cast<uint32_t>(leaf._version()));
  }
}

void ShardedModule::Impl::update(const std::function<void()>& change) {
  require_gradients("an update");
  require_untouched();
  for (const ForeignParameter& parameter : foreign_.parameters)
    for (const at::Tensor& leaf : parameter.leaves)
      if (leaf.requires_grad() != parameter.trainable)
        throw_input("{} {} since the module was taken over: freeze weights before", parameter.names.front(),
                    parameter.trainable ? "was frozen" : "asks for a gradient");
  const at::NoGradGuard no_grad;
  check_sequences();
  shards_.barrier();  // a peer may still read weights, as in an evaluation, that this rank is about to write
  change();
  const UnobservedScope unobserved;
  publish();
  if (options_.broadcast_buffers)
    for (const at::Tensor& buffer : foreign_.buffers) broadcast(buffer);
  open_ = complete_ = false;
  announced_ = 1;
}

void ShardedModule::Impl::publish() {
  for (const auto& parameter : parameters_)
    if (parameter->trainable() && parameter->copy().defined()) at::Tensor(parameter->copy()).copy_(parameter->master());
  weights_->publish();
  make_current();
  // Autograd then refuses a graph from before, whose activations belong to other weights.
  for (const ForeignParameter& foreign : foreign_.parameters)
    if (foreign.trainable)
      for (const at::Tensor& leaf : foreign.leaves) leaf.unsafeGetTensorImpl()->bump_version();
  note_versions();
}

// Weights that stay are waited for at once: nothing says when they are read.
void ShardedModule::Impl::make_current() {
  last_ = kNone;
  if (options_.level == Level::parameters) return;
  for (size_t u = 0; u < units_.size(); ++u) weights_->use(u);
}

void ShardedModule::Impl::before_use(std::span<const size_t> units, const std::string& operation) {
  if (units.size() == 1 && units[0] == last_) return;
  // A pass begins anew, as far as can be seen: what is gathered ahead follows the one before.
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (!in_backward) {
    const bool evaluates = !at::GradMode::is_enabled();
    if (evaluates_ && (!evaluates || units[0] == first_)) {
      weights_->before_forward();
      first_ = kNone;
    }
    evaluates_ = evaluates;
  }
  if (first_ == kNone) first_ = units[0];
  std::vector<const void*> memory;
  for (const size_t u : units) {
    sequence_ = (sequence_ ^ (u + 1)) * 1099511628211U;
    if (units_[u].block >= 0)
      weights_->before_block(units_[u].block);
    else
      weights_->use(u);
    memory.push_back(weights_->memory(u).values.front().const_data_ptr());
  }
  last_ = units.back();
  for (size_t i = 0; i < units.size(); ++i) {
    if (weights_->memory(units[i]).values.front().const_data_ptr() == memory[i]) continue;
    last_ = kNone;
    throw_input(
        "{} reads weights of the units {} and {} at once, which take turns in one memory: make them one unit, put the "
        "weights into none (the rest stays), or set reshard_after_forward = false",
        operation, units_[units[i]].name, units_[units[i + 1]].name);
  }
}

// Ranks that gather different units at the same moment would each get a part of either.
void ShardedModule::Impl::check_sequences() {
  if (!forward_is_collective()) return;
  const auto own = static_cast<int64_t>(sequence_ >> 1);
  sequence_ = 0;
  last_ = kNone;
  if (shards_.all_reduce_scalar(own, comm::ReduceOp::max) == shards_.all_reduce_scalar(own, comm::ReduceOp::min))
    return;
  throw_input(
      "the ranks of {} did not use the units of the module in the same order, so weights that they computed with are "
      "wrong: with Level::parameters every rank has to run the same operations; the other levels allow differences",
      shards_.axis());
}

at::Tensor ShardedModule::Impl::gather(const nn::Parameter& parameter, const at::Tensor& held) const {
  if (shards_.size() == 1) return held.clone();
  const Place& place = places_.at(&parameter);
  const Unit& unit = units_[place.unit];
  const at::IntArrayRef rows(unit.rank_rows.data() + place.at * static_cast<size_t>(shards_.size()),
                             static_cast<size_t>(shards_.size()));
  at::Tensor whole = at::empty(parameter.shape(), held.options());
  shards_.all_gather_v(whole, held, rows);
  return whole;
}

size_t ShardedModule::Impl::index_of(const std::string& name) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < foreign_.parameters.size(); ++i)
    for (const std::string& own : foreign_.parameters[i].names) {
      if (own == name) return i;
      names.push_back(own);
    }
  const std::string near = nearest(name, names);
  throw_input("the module has no parameter {}{}", name, near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

at::Tensor ShardedModule::Impl::gather_parameter(const std::string& name) {
  const at::NoGradGuard no_grad;
  const UnobservedScope unobserved;
  const size_t index = index_of(name);
  const nn::Parameter& parameter = *parameters_[index];
  return gather(parameter, parameter.master()).view(foreign_.parameters[index].sizes);
}

at::Tensor ShardedModule::Impl::gather_gradient(const std::string& name) {
  const at::NoGradGuard no_grad;
  const UnobservedScope unobserved;
  const size_t index = index_of(name);
  const nn::Parameter& parameter = *parameters_[index];
  if (!parameter.trainable()) throw_input("{} is frozen and has no gradient", name);
  require_gradients("gather_gradient()");
  return gather(parameter, parameter.gradient()).view(foreign_.parameters[index].sizes);
}

// The leaves of a parameter get the memory (and the type) of `whole`.
void ShardedModule::Impl::give(const nn::Parameter& parameter, const at::Tensor& whole) {
  const ForeignParameter& foreign = foreign_.parameters[indices_.at(&parameter)];
  for (const at::Tensor& leaf : foreign.leaves) at::Tensor(leaf).set_data(whole.view(foreign.sizes));
}

void ShardedModule::Impl::give_back() {
  const at::NoGradGuard no_grad;
  const UnobservedScope unobserved;  // to look at a value is no use of it
  for (const auto& parameter : parameters_) give(*parameter, parameter->value());
  note_versions();
}

void ShardedModule::Impl::with_whole_parameters(const std::function<void()>& body, bool keep) {
  if (in_pass_) throw_input("the module's parameters cannot be made whole inside a backward pass");
  check_sequences();
  std::vector<at::Tensor> wholes;
  {
    const at::NoGradGuard no_grad;
    const UnobservedScope unobserved;
    for (const auto& parameter : parameters_) wholes.push_back(gather(*parameter, parameter->master()));
    for (size_t i = 0; i < parameters_.size(); ++i) give(*parameters_[i], wholes[i]);
  }
  try {
    body();
    for (const ForeignParameter& parameter : foreign_.parameters)
      if (parameter.leaves.front().sizes() != parameter.sizes)
        throw_input("{} has become [{}]; it was [{}]", parameter.names.front(),
                    fmt::join(parameter.leaves.front().sizes(), ", "), fmt::join(parameter.sizes, ", "));
  } catch (...) {
    give_back();
    throw;
  }
  const at::NoGradGuard no_grad;
  const UnobservedScope unobserved;
  if (keep) {
    std::vector<at::Tensor> left;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& leaf = foreign_.parameters[i].leaves.front();
      const at::Tensor value = leaf.detach().to(wholes[i].scalar_type()).reshape(wholes[i].sizes()).contiguous();
      broadcast(value);
      left.push_back(value);
    }
    for (const at::Tensor& buffer : foreign_.buffers) broadcast(buffer);
    shards_.barrier();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const nn::Rows rows = parameters_[i]->rows();
      parameters_[i]->master().copy_(left[i].narrow(0, rows.begin, rows.size()));
    }
  }
  give_back();
  if (!keep) return;
  weights_->refresh();
  make_current();
}

void ShardedModule::Impl::save(const std::string& path) {
  if (in_pass_) throw_input("a module cannot be saved inside a backward pass");
  check_sequences();
  const at::NoGradGuard no_grad;
  const UnobservedScope unobserved;
  std::vector<at::Tensor> wholes;
  for (const auto& parameter : parameters_) {
    at::Tensor whole = gather(*parameter, parameter->master());
    if (is_first()) wholes.push_back(std::move(whole));
  }
  std::string fault;
  if (is_first()) {
    for (size_t i = 0; i < parameters_.size(); ++i) give(*parameters_[i], wholes[i]);
    try {
      torch::serialize::OutputArchive archive;
      module_->save(archive);
      archive.save_to(path + ".part");
      std::filesystem::rename(path + ".part", path);
    } catch (const std::exception& error) {
      fault = fmt::format("cannot write {}: {}", path, error.what());
    }
    give_back();
  }
  const bool failed = replicas_.any(shards_.any(!fault.empty()));
  if (!failed) return;
  throw_input("{}", fault.empty() ? fmt::format("cannot write {}: rank 0 has the reason", path) : fault);
}

void ShardedModule::Impl::load(const std::string& path) {
  with_whole_parameters(
      [&] {
        torch::serialize::InputArchive archive;
        archive.load_from(path);
        const at::NoGradGuard no_grad;
        module_->load(archive);
      },
      /*keep=*/true);
}

std::string ShardedModule::Impl::table() const {
  std::string text;
  for (const Unit& unit : units_) {
    int64_t elements = 0, held = 0;
    for (const nn::Parameter* parameter : unit.parameters) {
      elements += parameter->elements();
      held += parameter->held_elements();
    }
    text += fmt::format("{:<24} {:>3} parameters, {:>12} elements, {:>12} on this rank\n", unit.name,
                        unit.parameters.size(), elements, held);
  }
  return text;
}

ShardedModule::ShardedModule(std::shared_ptr<torch::nn::Module> module, comm::Communicator& shards,
                             comm::Communicator& replicas, const ShardedModuleOptions& options)
    : impl_(std::make_unique<Impl>(std::move(module), shards, replicas, options)) {}
ShardedModule::~ShardedModule() = default;

std::vector<at::Tensor> ShardedModule::parameters() const {
  std::vector<at::Tensor> result;
  for (auto& [name, tensor] : impl_->named_parameters()) result.push_back(tensor);
  return result;
}
std::vector<std::pair<std::string, at::Tensor>> ShardedModule::named_parameters() const {
  return impl_->named_parameters();
}
void ShardedModule::begin_step(int64_t backward_passes) { impl_->begin_step(backward_passes); }
double ShardedModule::gradient_norm() { return impl_->gradient_norm(); }
double ShardedModule::clip_gradients(double max_norm) { return impl_->clip_gradients(max_norm); }
void ShardedModule::step(torch::optim::Optimizer& optimizer) { impl_->step(optimizer); }
void ShardedModule::update(const std::function<void()>& change) { impl_->update(change); }
at::Tensor ShardedModule::gather_parameter(const std::string& name) { return impl_->gather_parameter(name); }
at::Tensor ShardedModule::gather_gradient(const std::string& name) { return impl_->gather_gradient(name); }
void ShardedModule::with_whole_parameters(const std::function<void()>& body, bool keep) {
  impl_->with_whole_parameters(body, keep);
}
void ShardedModule::save(const std::string& path) { impl_->save(path); }
void ShardedModule::load(const std::string& path) { impl_->load(path); }
std::string ShardedModule::table() const { return impl_->table(); }

std::vector<std::string> submodules(const torch::nn::Module& module,
                                    const std::function<bool(const torch::nn::Module&)>& wanted) {
  std::vector<std::string> names;
  for (const auto& item : module.named_modules(/*name_prefix=*/std::string(), /*include_self=*/false))
    if (wanted(*item.value())) names.push_back(item.key());
  return names;
}

}  // namespace trireme::parallel
