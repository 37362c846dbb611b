#include "nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme::nn {
namespace {

using Piece = std::function<at::Tensor(const at::Tensor&)>;

// saved_data holds IValues; a capsule's intrusive pointer keeps the piece alive as long as the graph.
struct Holder : torch::CustomClassHolder {
  Holder(Piece p, std::shared_ptr<ActivationStore> s) : piece(std::move(p)), store(std::move(s)) {}
  Piece piece;
  std::shared_ptr<ActivationStore> store;  // null: x is kept where it is
  ActivationStore::Handle handle;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<Holder>& holder) {
    if (holder->store)
      holder->handle = holder->store->put(x);
    else
      context->save_for_backward({x});
    context->saved_data["piece"] = c10::IValue::make_capsule(holder);
    const at::NoGradGuard no_grad;
    return holder->piece(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto holder = c10::static_intrusive_pointer_cast<Holder>(context->saved_data["piece"].toCapsule());
    const at::Tensor kept =
        holder->store ? holder->store->take(holder->handle) : context->get_saved_variables()[0].detach();
    const at::Tensor x = kept.requires_grad_();
    at::Tensor y;
    {
      const at::AutoGradMode grad(true);
      y = holder->piece(x);
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), {}};
  }
};

}  // namespace

at::Tensor recompute(const Piece& piece, const at::Tensor& x, const std::shared_ptr<ActivationStore>& store) {
  return Recompute::apply(x, c10::make_intrusive<Holder>(piece, store));
}

}  // namespace trireme::nn
