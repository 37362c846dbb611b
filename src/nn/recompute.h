// Full recomputation: a block keeps only its input and runs forward again in backward (Chen et al., arXiv:1604.06174).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "nn/offload.h"

namespace trireme::nn {

/// Same result as piece(x), in every bit. `piece` maps one tensor to one tensor, has no side effects but the gradients
/// of its weights, and must live until backward. x must require a gradient where the weights' gradients are wanted (at
/// the border of a model, an anchor makes it so). With a store, x waits for backward there.
at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& piece, const at::Tensor& x,
                     const std::shared_ptr<ActivationStore>& store = nullptr);

}  // namespace trireme::nn
