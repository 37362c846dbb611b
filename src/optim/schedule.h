// The learning rate of each step: warm-up, plateau, decay. A pure function of the step, so a resumed run needs no
// state.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace trireme::optim {

/// Learning rate of update `step`, counted from 0 (the rule of TorchTitan, components/optimizer/lr_scheduler.py):
///   t < warmup:  (t + 1) / warmup
///   plateau:     1
///   decay:       q = (t + 1 - warmup - plateau) / decay_steps, shape(q) scaled between 1 and min_ratio,
/// times optimizer.lr. plateau = horizon + 1 - warmup - decay: one virtual step, so that the last rate is not the
/// minimum of a horizon that ends there. Shapes: linear and wsd 1 - q; sqrt 1 - sqrt(q) (Haegele et al.,
/// arXiv:2405.18392); cosine (1 + cos(pi q)) / 2; constant 1. After the horizon the rate stays at its end. inverse_sqrt
/// knows no horizon: sqrt(warmup / (t + 1)) after warm-up, at least min_ratio (Vaswani et al., arXiv:1706.03762,
/// section 5.3; Megatron-LM, optimizer_param_scheduler.py).
double learning_rate(const config::LrScheduleConfig& schedule, double peak, int64_t step);

}  // namespace trireme::optim
