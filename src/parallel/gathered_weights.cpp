// Weights that are there only while they are used.
//
// Each block's unit has a place, which it shares with every (prefetch + 1)-th other; a unit that is not of a block has
// one of its own. The tensors of a unit stay the same for ever: their one storage is given the memory of the place
// when the unit is gathered, and forbidden memory when the place goes to another, below autograd. So whatever views an
// operation has kept for backward read the unit's values once it is gathered again, and until then reading them ends
// the process in place of training on another unit's weights.
//
// What is gathered ahead follows the pass before: the sequence of units in a micro-batch is the same each time, and
// all ranks take the same decisions from it. The first follows what most models do.
//
// With a second shard, ranks keep what they have gathered, divided among a few neighbours, until the weights change:
// the next gathers of a unit are among those (ZeRO++'s hpZ, Wang et al., arXiv:2306.10209, section 3.2; FSDP2's
// reshard_after_forward with a number). Groups of neighbours are not at the same unit at the same time, so each rank
// then has places of its own. So it is where gathers are quantised: what a rank makes of the bytes is its own.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "ops/dispatch.h"
#include "parallel/quantized_parts.h"
#include "parallel/weights.h"

namespace trireme::parallel {
namespace {

// Addresses that may not be read or written, and take no memory.
class ForbiddenMemory {
 public:
  explicit ForbiddenMemory(size_t bytes) : bytes_(std::max<size_t>(bytes, 1)) {
    memory_ = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) throw_errno("reserve", fmt::format("{} bytes of addresses", bytes_), errno);
  }
  ~ForbiddenMemory() { ::munmap(memory_, bytes_); }
  ForbiddenMemory(const ForbiddenMemory&) = delete;
  ForbiddenMemory& operator=(const ForbiddenMemory&) = delete;
  void* data() const { return memory_; }

 private:
  size_t bytes_;
  void* memory_;
};

// A tensor whose memory is given to it and taken away; it never owns any.
class MovableTensor {
 public:
  MovableTensor(int64_t elements, at::ScalarType dtype, at::Device device) : device_(device) {
    const auto bytes = static_cast<size_t>(elements) * c10::elementSize(dtype);
    storage_ = c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device), nullptr, false);
    tensor_ = at::empty({0}, at::TensorOptions(dtype).device(device)).set_(storage_, 0, {elements}, {1});
  }
  const at::Tensor& tensor() const { return tensor_; }
  void move_to(void* memory) {
    static_cast<void>(storage_.unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(memory, device_)));
  }

 private:
  at::Device device_;
  c10::Storage storage_;
  at::Tensor tensor_;
};

class GatheredWeights final : public Weights {
 public:
  GatheredWeights(std::span<const Unit> units, comm::Communicator& shards, at::Device device,
                  const GatherOptions& options)
      : units_(units), shards_(shards), options_(options) {
    TRIREME_CHECK(options.prefetch >= 0, "a prefetch of {}", options.prefetch);
    make_places(device);
    size_t largest = 0;
    for (const Place& place : places_) largest = std::max(largest, place.memory.tensor().nbytes());
    forbidden_ = std::make_unique<ForbiddenMemory>(largest);
    for (size_t i = 0; i < units_.size(); ++i) make_state(i, device);
    before_ = usual_order();
  }

  const Memory& memory(size_t index) const override { return states_[index].memory; }

  void use(size_t index) override {
    const Unit& unit = units_[index];
    TRIREME_CHECK(
        unit.block < 0 || unit.block == block_,
        "a weight of the unit {} is read {}: a unit called blocks.N belongs to block N alone; put what others "
        "read into a unit of another name",
        unit.name, block_ < 0 ? std::string("outside of the blocks") : fmt::format("by block {}", block_));
    require(index);
  }

  void publish() override {
    ++version_;
    for (State& state : states_) finish(state);
  }
  void refresh() override {
    const at::NoGradGuard no_grad;
    for (State& state : states_)
      for (size_t i = 0; i < state.memory.copies.size(); ++i)
        if (state.memory.copies[i].defined()) state.memory.copies[i].copy_(state.memory.masters[i]);
    publish();
  }

  void substitute(std::span<const at::Tensor> sources) override {
    size_t next = 0;
    for (State& state : states_) {
      state.sources.clear();
      for (size_t i = 0; i < state.memory.masters.size(); ++i) state.sources.push_back(sources[next++]);
    }
    publish();
  }
  void restore() override {
    for (State& state : states_) state.sources = own_sources(state);
    publish();
  }

  void before_forward() override {
    // A pass without backward (an evaluation) says nothing about what follows the forward pass of a step.
    const bool begins_alike = now_.size() <= before_.size() && std::equal(now_.begin(), now_.end(), before_.begin());
    if (!begins_alike) before_ = now_;
    now_.clear();
    block_ = -1;
  }
  void before_block(int64_t index) override { enter(index); }
  void before_backward() override { block_ = -1; }
  void before_block_backward(int64_t index) override { enter(index); }

 private:
  struct State;
  struct Place {
    SharedTensor memory;
    SharedTensor send, received;  // bytes, where gathers are quantised
    State* occupant = nullptr;
  };
  // What a rank keeps of gathered weights among its neighbours.
  struct SecondShard {
    SecondShard(const Unit& whole, comm::Communicator& neighbours)
        : unit({whole.name, whole.parameters}, neighbours.rank(), neighbours.size()) {}
    Unit unit;
    SharedTensor memory;
    std::vector<at::Tensor> rows;
    std::vector<at::Tensor> gathered;  // the same rows of the values
    uint64_t version = 0;              // of the weights that it holds
  };
  struct State {
    std::unique_ptr<MovableTensor> flat;
    Memory memory;
    SharedTensor held;                // the masters, or what follows them
    std::vector<at::Tensor> targets;  // the values, apart from autograd: what it has kept of them stays valid
    std::vector<at::Tensor> sources;  // what is gathered: the copies or masters, or what stands for them
    size_t place = 0;
    uint64_t version = 0;  // of the weights that were gathered last; 0: none
    bool pending = false;  // posted, not waited for
    bool from_second = false;
    comm::Work gather;
    std::optional<QuantizedGather> quantized;
    std::unique_ptr<SecondShard> second;
  };

  void make_places(at::Device device) {
    const int64_t ring = options_.prefetch + 1;
    std::map<int64_t, size_t> of_blocks;  // place number in the ring -> index
    std::map<size_t, int64_t> elements, sent, received;
    for (size_t i = 0; i < units_.size(); ++i) {
      const Unit& unit = units_[i];
      const int64_t turn = options_.reshard_after_forward ? unit.block % ring : unit.block;
      const bool shares = unit.block >= 0 && of_blocks.contains(turn);
      const size_t place = shares ? of_blocks[turn] : elements.size();
      if (unit.block >= 0) of_blocks[turn] = place;
      elements[place] = std::max(elements[place], unit.elements);
      place_of_.push_back(place);
      if (!options_.quantized) continue;
      const QuantizedParts parts = QuantizedParts::of_unit(*options_.quantized, unit, shards_.size());
      received[place] = std::max(received[place], parts.bytes());
      for (const int64_t bytes : parts.rank_bytes()) sent[place] = std::max(sent[place], bytes);
    }
    const bool own = options_.quantized || options_.neighbours != nullptr;
    for (const auto& [place, size] : elements) {
      Place& made = places_.emplace_back();
      made.memory =
          SharedTensor(shards_, fmt::format("weights/place {}", place), size, units_[0].parameters.front()->dtype(),
                       device, memory::Purpose::weights, own ? comm::Sharing::each : comm::Sharing::once);
      if (!options_.quantized) continue;
      made.send = SharedTensor(shards_, fmt::format("weights/place {}, sent", place), sent[place], at::kByte, device,
                               memory::Purpose::communication, comm::Sharing::each);
      made.received = SharedTensor(shards_, fmt::format("weights/place {}, received", place), received[place],
                                   at::kByte, device, memory::Purpose::communication, comm::Sharing::once);
    }
  }

  static const std::vector<at::Tensor>& own_sources(const State& state) {
    const Memory& memory = state.memory;
    return !memory.copies.empty() && memory.copies.front().defined() ? memory.copies : memory.masters;
  }

  void make_state(size_t index, at::Device device) {
    const Unit& unit = units_[index];
    const at::ScalarType dtype = unit.parameters.front()->dtype();
    State state;
    state.place = place_of_[index];
    state.flat = std::make_unique<MovableTensor>(unit.elements, dtype, device);
    state.flat->move_to(forbidden_->data());
    // What is gathered is in the memory that ranks share: a rank that waits casts for one that still computes.
    const auto held = [&](const char* what, at::ScalarType type, memory::Purpose purpose) {
      state.held = SharedTensor(shards_, std::string(what) + "/" + unit.name, unit.held, type, device, purpose,
                                comm::Sharing::each);
      return unit.shards(state.held.tensor());
    };
    state.memory.values = unit.whole(state.flat->tensor());
    for (const at::Tensor& value : state.memory.values) state.targets.push_back(value.variable_data());
    const at::ScalarType statistics = ops::compute_type(dtype);
    if (options_.master_memory && dtype != statistics) {
      const memory::PurposeScope scope(memory::Purpose::master_weights);
      state.memory.masters =
          unit.shards([&](at::IntArrayRef sizes) { return options_.master_memory(sizes, statistics); });
      state.memory.copies = held("weights", dtype, memory::Purpose::weights);
    } else {
      state.memory.masters = held("master weights", statistics, memory::Purpose::master_weights);
      state.memory.copies.resize(unit.parameters.size());
    }
    state.sources = own_sources(state);
    if (options_.quantized)
      state.quantized.emplace(shards_, QuantizedParts::of_unit(*options_.quantized, unit, shards_.size()));
    if (options_.neighbours != nullptr && unit.block >= 0) {  // others keep their places
      state.second = std::make_unique<SecondShard>(unit, *options_.neighbours);
      SecondShard& second = *state.second;
      second.memory = SharedTensor(*options_.neighbours, "second shard/" + unit.name, second.unit.held, dtype, device,
                                   memory::Purpose::weights, comm::Sharing::each);
      second.rows = second.unit.shards(second.memory.tensor());
      second.gathered = second.unit.own_rows(state.targets);
    }
    states_.push_back(std::move(state));
  }

  // Forward as units are listed, and the blocks again in backward. Where no embedding is listed before the blocks, the
  // last unit is that too.
  std::vector<size_t> usual_order() const {
    std::vector<size_t> order, blocks;
    for (size_t i = 0; i < units_.size(); ++i)
      if (units_[i].block >= 0) blocks.push_back(i);
    const bool tied = !blocks.empty() && blocks.back() + 1 < units_.size() &&
                      std::ranges::any_of(units_.back().parameters, [](const auto* p) { return p->uses() > 1; });
    if (tied) order.push_back(units_.size() - 1);
    for (size_t i = 0; i < units_.size(); ++i) order.push_back(i);
    order.insert(order.end(), blocks.rbegin(), blocks.rend());
    return order;
  }

  void enter(int64_t block) {
    block_ = block;
    for (size_t i = 0; i < units_.size(); ++i)
      if (units_[i].block == block) require(i);
    shards_.progress();
    if (options_.neighbours != nullptr) options_.neighbours->progress();
  }

  // The unit is about to be read: what comes after it is posted before it is waited for.
  void require(size_t index) {
    const bool fresh = now_.empty() || now_.back() != index;
    if (fresh) now_.push_back(index);
    post(index);
    if (fresh) prefetch();
    finish(states_[index]);
  }

  bool is_there(const State& state) const { return state.version == version_; }

  // By this call the rank says that it reads no more of what the place held.
  void post(size_t index) {
    State& state = states_[index];
    if (is_there(state)) return;
    finish(state);
    Place& place = places_[state.place];
    if (place.occupant != &state) {
      if (place.occupant != nullptr) {
        finish(*place.occupant);  // it was gathered ahead, and never read
        place.occupant->version = 0;
        place.occupant->flat->move_to(forbidden_->data());
      }
      place.occupant = &state;
      state.flat->move_to(place.memory.tensor().data_ptr());
    }
    state.from_second = state.second != nullptr && state.second->version == version_;
    if (state.from_second)
      state.gather =
          options_.neighbours->all_gather_v_async(state.targets, state.second->rows, state.second->unit.rank_rows);
    else if (state.quantized)
      state.gather = state.quantized->post(state.sources, place.send.tensor(), place.received.tensor());
    else
      state.gather = shards_.all_gather_v_async(state.targets, state.sources, units_[index].rank_rows);
    state.version = version_;
    state.pending = true;
  }

  void finish(State& state) {
    if (!std::exchange(state.pending, false)) return;
    const int64_t start = steady_nanoseconds();
    state.gather.wait();
    waited_seconds_ += static_cast<double>(steady_nanoseconds() - start) * 1e-9;
    if (state.from_second) return;
    if (state.quantized) state.quantized->unpack(places_[state.place].received.tensor(), state.targets);
    if (state.second == nullptr) return;
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < state.second->rows.size(); ++i) state.second->rows[i].copy_(state.second->gathered[i]);
    state.second->version = state.version;
  }

  // The next units of the micro-batch before, as long as that went as this one does, and no further than places reach.
  void prefetch() {
    if (now_.size() > before_.size() || !std::equal(now_.begin(), now_.end(), before_.begin())) return;
    std::vector<size_t> taken = {now_.back()};
    for (size_t i = now_.size(); i < before_.size(); ++i) {
      const size_t next = before_[i];
      if (std::find(taken.begin(), taken.end(), next) != taken.end()) continue;
      if (static_cast<int64_t>(taken.size()) > options_.prefetch) return;
      const auto same_place = [&](size_t other) { return states_[other].place == states_[next].place; };
      if (std::any_of(taken.begin(), taken.end(), same_place)) return;
      post(next);
      taken.push_back(next);
    }
  }

  std::span<const Unit> units_;
  comm::Communicator& shards_;
  GatherOptions options_;
  std::unique_ptr<ForbiddenMemory> forbidden_;
  std::vector<size_t> place_of_;
  std::vector<Place> places_;
  std::deque<State> states_;  // places point at them
  uint64_t version_ = 1;
  int64_t block_ = -1;                // that runs
  std::vector<size_t> now_, before_;  // units in the order of use: of this micro-batch so far, and of the one before
};

}  // namespace

std::unique_ptr<Weights> make_gathered_weights(std::span<const Unit> units, comm::Communicator& shards,
                                               at::Device device, const GatherOptions& options) {
  return std::make_unique<GatheredWeights>(units, shards, device, options);
}

}  // namespace trireme::parallel
