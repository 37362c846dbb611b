// The global norm of all gradients, by which they are clipped and by which a step that is not finite is found.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "nn/parameter.h"

namespace trireme::optim {

struct GradientNorm {
  double total = 0;
  /// Norm of each parameter, in the order given.
  std::vector<double> each;
  /// Name of the first parameter whose gradient is not finite; empty when all are.
  std::string not_finite;
};

/// L2 norms of the gradients divided by `loss_scale`, which is in them; in double, each summed in an order that depends
/// on the shape of what a rank holds, and then over the ranks of `shards`, which hold the rest: a collective of theirs.
/// All ranks get the same bits. `by_rows`: each row is summed by itself and rows in their order, so that who holds
/// which changes no bit; all ranks gather the sums of all rows.
GradientNorm gradient_norm(std::span<nn::Parameter* const> parameters, comm::Communicator& shards,
                           double loss_scale = 1, bool by_rows = false);

/// The same from what this rank found of each gradient when it was there: the sums of squares of what it holds.
GradientNorm gradient_norm(std::span<nn::Parameter* const> parameters, std::vector<double> squares,
                           comm::Communicator& shards);

/// The factor that brings a norm down to `limit`: min(1, limit / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has
/// it. limit 0 does not clip.
double clip_coefficient(double norm, double limit);

}  // namespace trireme::optim
