#include "parallel/gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "memory/purpose.h"
#include "ops/dispatch.h"

namespace trireme::parallel {
namespace {

// Buffers that the units of blocks take in turn: one is filled while another is exchanged. What is rounded for its way
// has left the buffer at once.
constexpr int64_t kBlockBuffers = 2, kBlockBuffersQuantized = 1;
// Units whose sums over the copies of shards may wait for their exchange: fewer than the operations that a group keeps.
constexpr size_t kMostWaiting = 16;

}  // namespace

Gradients::Gradients(std::span<const Unit> units, comm::Communicator& shards, comm::Communicator& replicas,
                     at::Device device, const GradientOptions& options)
    : shards_(shards), replicas_(replicas), at_once_(options.at_once), tree_(options.tree), use_(options.use) {
  TRIREME_CHECK(!(options.narrow && options.tree), "a tree of sums that are rounded in between");
  TRIREME_CHECK(!use_ || !(options.at_once || options.tree), "gradients that are used at once and kept");
  TRIREME_CHECK(!options.quantized || !(tree_ || options.narrow || use_),
                "contributions that are rounded, in a tree, in bf16 or used at once");
  if (options.quantized)
    quantized_ = std::make_unique<QuantizedGradients>(units, shards, replicas, device, *options.quantized);
  const auto purpose = memory::Purpose::gradients;
  // Either axis may be the one that reads this memory, and an arena serves both.
  comm::Communicator& ranks = shards.size() > 1 ? shards : replicas;
  const auto shared = [&](const std::string& name, int64_t elements) {
    const at::ScalarType dtype = units.front().parameters.front()->dtype();
    return SharedTensor(ranks, "gradients/" + name, elements, options.narrow ? dtype : ops::compute_type(dtype), device,
                        purpose, comm::Sharing::each);
  };
  for (const Unit& unit : units) {
    State& state = states_.emplace_back();
    state.unit = &unit;
    state.index = states_.size() - 1;
    if (at_once_) {
      state.sums = shared(unit.name, unit.held);
      state.shards = unit.shards(state.sums.tensor());
    } else if (!use_) {
      state.whole = shared(unit.name, unit.elements);
    }
  }
  if (at_once_ || use_) {
    // The largest of the units that share a buffer.
    std::vector<int64_t> elements;
    const int64_t turns = quantized_ != nullptr ? kBlockBuffersQuantized : kBlockBuffers;
    std::vector<int64_t> of_turn(static_cast<size_t>(turns), -1);
    for (State& state : states_) {
      const int64_t block = state.unit->block;
      int64_t index = block >= 0 ? of_turn[static_cast<size_t>(block % turns)] : -1;
      if (index < 0) {
        index = static_cast<int64_t>(elements.size());
        elements.push_back(0);
        if (block >= 0) of_turn[static_cast<size_t>(block % turns)] = index;
      }
      state.buffer = static_cast<size_t>(index);
      elements[state.buffer] = std::max(elements[state.buffer], state.unit->elements);
    }
    for (size_t i = 0; i < elements.size(); ++i)
      buffers_.push_back({shared(fmt::format("buffer {}", i), elements[i]), {}, nullptr});
  }
  if (at_once_) return;
  for (State& state : states_) {
    state.received = state.unit->whole(memory_of(state));
    state.shards = state.unit->own_rows(state.received);
  }
}

// All of a unit's gradient.
at::Tensor Gradients::memory_of(const State& state) const {
  if (!at_once_ && !use_) return state.whole.tensor();
  return buffers_[state.buffer].memory.tensor().narrow(0, 0, state.unit->elements);
}

void Gradients::begin_step(int64_t micro_batches) {
  micro_batches_ = micro_batches;
  for (Buffer& buffer : buffers_) buffer.occupant = nullptr;
  for (State& state : states_) {
    state.first = true;
    state.rounds_left = at_once_ || tree_ ? micro_batches : 1;
    state.summed = 0;
    state.has_buffer = !at_once_ && !use_;
    state.used = false;
    state.reduce = state.replicate = {};
    expect(state);
  }
}

void Gradients::expect(State& state) {
  state.incomplete = static_cast<int64_t>(state.unit->parameters.size());
  for (nn::Parameter* parameter : state.unit->parameters)
    parameter->expect_gradients(at_once_ || tree_ ? 1 : micro_batches_,
                                [this, &state](nn::Parameter&) { on_complete(state); });
}

void Gradients::before_contribution(size_t index) {
  State& state = states_[index];
  if (state.has_buffer) return;
  Buffer& buffer = buffers_[state.buffer];
  wait(buffer.in_use);
  state.has_buffer = true;
  if (use_) {
    while (buffer.occupant != nullptr && !buffer.occupant->used) {
      TRIREME_CHECK(!(summing_.empty() && reducing_.empty()),
                    "{} has a gradient before that of {}, whose place it takes, is complete", state.unit->name,
                    buffer.occupant->unit->name);
      if (summing_.empty()) sum_first_over_replicas();
      use_first();
    }
    buffer.occupant = &state;
    return;
  }
  TRIREME_CHECK(buffer.occupant == nullptr || buffer.occupant == &state || !buffer.occupant->has_buffer,
                "{} has a gradient before that of {}, whose place it takes, is complete", state.unit->name,
                buffer.occupant->unit->name);
  buffer.occupant = &state;
  const std::vector<at::Tensor> parts = state.unit->whole(memory_of(state));
  for (size_t i = 0; i < parts.size(); ++i) state.unit->parameters[i]->receive_gradient(parts[i]);
  state.received = parts;
}

void Gradients::on_complete(State& state) {
  if (--state.incomplete > 0) return;
  if (tree_ && !at_once_) count(state, state.whole.tensor());
  if (at_once_ || state.rounds_left == 1) exchange(state);
  if (--state.rounds_left > 0) expect(state);
  sum_over_replicas(kMostWaiting);
  use_what_is_there();
  shards_.progress();
  replicas_.progress();
}

void Gradients::exchange(State& state) {
  const bool last = state.rounds_left == 1;
  comm::Reduction how = state.first || tree_ ? comm::Reduction() : comm::Reduction::accumulating();
  how.tree = tree_;
  count_reduced(state);
  if (quantized_ != nullptr)
    quantized_->reduce(state.index, state.received, state.shards, how.accumulate);
  else if (at_once_ || shards_.size() > 1)
    state.reduce = shards_.reduce_scatter_v_async(state.shards, state.received, state.unit->rank_rows, how);
  state.uncounted = tree_ && at_once_;
  if (at_once_) {
    buffers_[state.buffer].in_use = state.reduce;
    state.has_buffer = false;
  }
  state.first = false;
  if (!last) return;
  reducing_.push_back(&state);
}

// The sum of one more micro-batch: in place of it, that of as many as are complete. Afterwards `sum` may be written
// again unless it was the last.
void Gradients::count(State& state, const at::Tensor& sum) {
  const at::NoGradGuard no_grad;
  const memory::PurposeScope scope(memory::Purpose::gradients);
  at::Tensor total = sum;
  size_t level = 0;
  for (int64_t before = state.summed++; (before & 1) != 0; before >>= 1) total.add_(state.waiting[level++]);
  if (state.summed == micro_batches_) return;
  if (state.waiting.size() <= level) state.waiting.resize(level + 1);
  if (!state.waiting[level].defined()) state.waiting[level] = at::empty_like(sum);
  state.waiting[level].copy_(total);
}

// Nothing of the unit is under way between the ranks that divide it.
bool Gradients::reduced(State& state) {
  return quantized_ != nullptr ? quantized_->reduced(state.index) : state.reduce.done();
}

// A shard that has been reduced and not counted: before its memory is used again, and before it goes to the replicas.
void Gradients::count_reduced(State& state) {
  if (!std::exchange(state.uncounted, false)) return;
  wait(state.reduce);
  count(state, state.sums.tensor());
}

// The sums of a unit follow its exchange, in the order of the exchanges: the same on all replicas.
// At most so many may be left to wait for: those of one axis that are posted while the other's stand still are limited.
void Gradients::sum_over_replicas(size_t most_waiting) {
  while (!reducing_.empty()) {
    State& state = *reducing_.front();
    if (quantized_ != nullptr && !(reduced(state) && quantized_->can_replicate())) return;
    if (reducing_.size() <= most_waiting && !reduced(state)) return;
    sum_first_over_replicas();
  }
}

void Gradients::sum_first_over_replicas() {
  State& state = *reducing_.front();
  wait(state.reduce);
  count_reduced(state);
  comm::Reduction how;
  how.tree = tree_;
  // Whole buffers in one piece: gaps between the parameters are zeros. In a buffer that units share they may be
  // anything.
  if (quantized_ != nullptr)
    quantized_->replicate(state.index, state.shards);
  else if (at_once_)
    state.replicate = replicas_.all_reduce_async(state.sums.tensor(), how);
  else if (shards_.size() == 1 && !use_)
    state.replicate = replicas_.all_reduce_async(state.whole.tensor(), how);
  else
    state.replicate = replicas_.all_reduce_async(state.shards, how);
  reducing_.pop_front();
  if (use_) summing_.push_back(&state);
}

void Gradients::use_first() {
  State& state = *summing_.front();
  wait(state.replicate);
  use_(state.index);
  state.used = true;
  summing_.pop_front();
}

void Gradients::use_what_is_there() {
  while (!summing_.empty() && summing_.front()->replicate.done()) use_first();
}

void Gradients::wait(comm::Work& work) {
  const int64_t start = steady_nanoseconds();
  work.wait();
  waited_seconds_ += static_cast<double>(steady_nanoseconds() - start) * 1e-9;
}

void Gradients::finish() {
  for (const State& state : states_) {
    for (const nn::Parameter* parameter : state.unit->parameters)
      TRIREME_CHECK(parameter->complete(), "the gradient of {} is not complete: {} of {} contributions arrived",
                    parameter->name(), parameter->arrived(), parameter->expected());
  }
  if (quantized_ != nullptr) {
    // All of the first axis before anything of the second is waited for.
    for (const State* state : reducing_) quantized_->finish_reduce(state->index);
    while (!reducing_.empty()) sum_first_over_replicas();
    quantized_->finish_replicas();
  }
  sum_over_replicas(0);
  while (!summing_.empty()) use_first();
  // In about the order in which they were posted: the last units of the model first.
  for (auto state = states_.rbegin(); state != states_.rend(); ++state) wait(state->replicate);
}

}  // namespace trireme::parallel
