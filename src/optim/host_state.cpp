#include <ATen/ATen.h>

#include <array>
#include <utility>

#include "describe/offload_pieces.h"
#include "memory/purpose.h"
#include "optim/offloaded_state.h"

namespace trireme::optim {
namespace {

class HostState final : public OffloadedState {
 public:
  explicit HostState(std::span<nn::Parameter* const> parameters) : OffloadedState(parameters) {
    const memory::TierScope host(memory::Tier::host);
    const memory::PurposeScope scope(memory::Purpose::moments);
    for (const nn::Parameter* parameter : parameters_) {
      const at::Tensor& master = parameter->master();
      const auto zeros = [&] { return at::zeros(master.sizes(), master.scalar_type()); };
      moments_.push_back({zeros(), zeros()});
    }
  }

  void update(std::span<const size_t> parameters, const Body& body) override {
    for (const Piece& piece : pieces_of(parameters)) {
      const nn::Parameter& parameter = *parameters_[piece.index];
      const Operands there = Operands::of(parameter, moments_[piece.index]).narrow(piece.first, piece.count);
      Operands here = there;
      // Masters that are the weights that compute have not moved.
      const bool master_moved = parameter.copy().defined();
      here.gradient = take(rooms_[0], there.gradient);
      if (!master_moved) here.master = take(rooms_[1], there.master);
      if (there.copy.defined()) here.copy = room(rooms_[2], there.copy);
      body(piece, here);
      if (!master_moved) at::Tensor(there.master).copy_(here.master);
      if (there.copy.defined()) at::Tensor(there.copy).copy_(here.copy);
    }
  }

 private:
  // Room for a piece like `tensor`, the same each time.
  static at::Tensor room(at::Tensor& room, const at::Tensor& tensor) {
    if (!room.defined()) {
      const memory::TierScope host(memory::Tier::host);
      const memory::PurposeScope scope(memory::Purpose::moments);
      room = at::empty({describe::kOffloadPieceElements}, tensor.scalar_type());
    }
    return room.narrow(0, 0, tensor.numel());
  }
  static at::Tensor take(at::Tensor& into, const at::Tensor& tensor) { return room(into, tensor).copy_(tensor); }

  std::array<at::Tensor, 3> rooms_;  // for gradients, masters, copies
};

}  // namespace

std::unique_ptr<OffloadedState> make_host_state(std::span<nn::Parameter* const> parameters) {
  return std::make_unique<HostState>(parameters);
}

}  // namespace trireme::optim
