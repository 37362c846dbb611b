#include "optim/offloaded_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "describe/offload_pieces.h"

namespace trireme::optim {

Operands Operands::of(const nn::Parameter& parameter, const Moments& moments) {
  const auto flat = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.view({-1}) : tensor; };
  return {flat(parameter.master()), flat(moments.exp_avg), flat(moments.exp_avg_sq), flat(parameter.gradient()),
          flat(parameter.copy())};
}

Operands Operands::narrow(int64_t first, int64_t count) const {
  const auto part = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, first, count) : tensor;
  };
  return {part(master), part(exp_avg), part(exp_avg_sq), part(gradient), part(copy)};
}

std::vector<OffloadedState::Piece> OffloadedState::pieces_of(std::span<const size_t> parameters) const {
  constexpr int64_t kMost = describe::kOffloadPieceElements;
  std::vector<Piece> pieces;
  for (const size_t index : parameters) {
    const int64_t elements = parameters_[index]->held_elements();
    for (int64_t first = 0; first < elements; first += kMost)
      pieces.push_back({index, first, std::min(kMost, elements - first)});
  }
  return pieces;
}

}  // namespace trireme::optim
