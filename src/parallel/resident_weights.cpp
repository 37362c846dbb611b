#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "base/clock.h"
#include "ops/dispatch.h"
#include "parallel/weights.h"

namespace trireme::parallel {
namespace {

class ResidentWeights final : public Weights {
 public:
  ResidentWeights(std::span<const Unit> units, comm::Communicator& shards, at::Device device,
                  const MasterMemory& master_memory)
      : shards_(shards) {
    for (const Unit& unit : units) {
      State state;
      state.unit = &unit;
      const at::ScalarType dtype = unit.parameters.front()->dtype(), statistics = ops::compute_type(dtype);
      state.flat = SharedTensor(shards, "weights/" + unit.name, unit.elements, dtype, device, memory::Purpose::weights,
                                comm::Sharing::once);
      state.memory.values = unit.whole(state.flat.tensor());
      const std::vector<at::Tensor> own = unit.own_rows(state.memory.values);
      if (dtype == statistics) {
        // A rank that holds all of a parameter has one tensor for both.
        state.memory.masters = shards.size() == 1 ? state.memory.values : own;
        state.memory.copies.resize(own.size());
      } else {
        const memory::PurposeScope scope(memory::Purpose::master_weights);
        if (master_memory) {
          state.memory.masters = unit.shards([&](at::IntArrayRef sizes) { return master_memory(sizes, statistics); });
        } else {
          state.memory.masters = unit.shards(at::zeros({unit.held}, at::TensorOptions(statistics).device(device)));
        }
        state.memory.copies = own;
      }
      state.own = own;
      for (const nn::Parameter* parameter : unit.parameters) state.trained = state.trained || parameter->trainable();
      states_.push_back(std::move(state));
    }
  }

  const Memory& memory(size_t index) const override { return states_[index].memory; }

  void use(size_t index) override {
    State& state = states_[index];
    if (!state.used) {
      state.used = true;
      order_.push_back(index);
    }
    finish(index);
  }

  void publish() override {
    for (const size_t index : in_order_of_use())
      if (states_[index].trained) gather(index);
  }

  void refresh() override {
    const at::NoGradGuard no_grad;
    for (State& state : states_)
      for (size_t i = 0; i < state.own.size(); ++i)
        if (state.memory.copies[i].defined()) state.memory.copies[i].copy_(state.memory.masters[i]);
    gather_all();
  }

  void substitute(std::span<const at::Tensor> sources) override {
    const at::NoGradGuard no_grad;
    settle();
    size_t next = 0;
    for (State& state : states_) {
      for (const at::Tensor& rows : state.own) {
        kept_.push_back(rows.clone());
        at::Tensor(rows).copy_(sources[next++]);
      }
    }
    gather_all();
  }

  void restore() override {
    const at::NoGradGuard no_grad;
    settle();
    size_t next = 0;
    for (State& state : states_)
      for (const at::Tensor& rows : state.own) at::Tensor(rows).copy_(kept_[next++]);
    kept_.clear();
    gather_all();
  }

  void before_forward() override {}
  void before_block(int64_t /*index*/) override {}
  void before_backward() override {}
  void before_block_backward(int64_t /*index*/) override {}

 private:
  struct State {
    const Unit* unit = nullptr;
    SharedTensor flat;
    Memory memory;
    std::vector<at::Tensor> own;  // rows of the values that this rank writes
    comm::Work gather;
    bool pending = false;
    bool trained = false;  // some of it is not frozen
    bool used = false;
  };

  void gather(size_t index) {
    if (shards_.size() == 1) return;
    finish(index);  // what was gathered before and never read
    State& state = states_[index];
    state.gather = shards_.all_gather_v_async(state.memory.values, state.own, state.unit->rank_rows);
    state.pending = true;
  }
  void gather_all() {
    for (const size_t index : in_order_of_use()) gather(index);
  }

  void finish(size_t index) {
    State& state = states_[index];
    if (!std::exchange(state.pending, false)) return;
    const int64_t start = steady_nanoseconds();
    state.gather.wait();
    waited_seconds_ += static_cast<double>(steady_nanoseconds() - start) * 1e-9;
  }

  // What is read first is gathered first: exchanges end in their order. All ranks use the units in the same one.
  std::vector<size_t> in_order_of_use() const {
    std::vector<size_t> order = order_;
    for (size_t i = 0; i < states_.size(); ++i)
      if (!states_[i].used) order.push_back(i);
    return order;
  }

  // Nobody reads the values: what was gathered has come, and all ranks are here.
  void settle() {
    for (size_t i = 0; i < states_.size(); ++i) finish(i);
    shards_.barrier();
  }

  comm::Communicator& shards_;
  std::vector<State> states_;
  std::vector<size_t> order_;  // of first use
  std::vector<at::Tensor> kept_;
};

}  // namespace

std::unique_ptr<Weights> make_resident_weights(std::span<const Unit> units, comm::Communicator& shards,
                                               at::Device device, const MasterMemory& master_memory) {
  return std::make_unique<ResidentWeights>(units, shards, device, master_memory);
}

}  // namespace trireme::parallel
