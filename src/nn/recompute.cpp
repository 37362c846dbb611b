#include "nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "memory/purpose.h"
#include "ops/function.h"

namespace trireme::nn {
namespace {

using Piece = std::function<at::Tensor(const at::Tensor&)>;

struct Kept {
  Piece piece;
  std::shared_ptr<ActivationStore> store;  // null: x is kept where it is
  ActivationStore::Handle handle;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(ops::Context* context, const at::Tensor& x, const ops::Holder<Kept>& holder) {
    Kept& kept = holder->value;
    if (kept.store)
      kept.handle = kept.store->put(x);
    else
      context->save_for_backward({x});
    ops::keep(context, "kept", holder);
    const at::NoGradGuard no_grad;
    return kept.piece(x);
  }

  static ops::Gradients backward(ops::Context* context, ops::Gradients gradients) {
    const Kept& kept = ops::kept<Kept>(context, "kept");
    const at::Tensor saved = kept.store ? kept.store->take(kept.handle) : context->get_saved_variables()[0].detach();
    const at::Tensor x = saved.requires_grad_();
    at::Tensor y;
    {
      const at::AutoGradMode grad(true);
      const memory::PurposeScope scope(memory::Purpose::activations);
      y = kept.piece(x);
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), {}};
  }
};

}  // namespace

at::Tensor recompute(const Piece& piece, const at::Tensor& x, const std::shared_ptr<ActivationStore>& store) {
  return Recompute::apply(x, ops::hold(Kept{piece, store, {}}));
}

}  // namespace trireme::nn
