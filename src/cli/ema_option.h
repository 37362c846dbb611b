// --ema of the commands that take weights out of a checkpoint.
#pragma once

#include <CLI/CLI.hpp>

#include "train/checkpointing.h"

namespace trireme::cli {

/// `weights` becomes the average when the flag is given; it has to live as long as the command.
inline void add_ema(CLI::App& command, train::Weights& weights) {
  command.add_flag_callback(
      "--ema", [&weights] { weights = train::Weights::average; },
      "The moving average of the weights (train.ema_decay)");
}

}  // namespace trireme::cli
