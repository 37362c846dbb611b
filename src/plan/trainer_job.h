// A run of `trireme train` as a job of the planner, and the way back: what of a plan the trainer can do today.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "plan/job.h"

namespace trireme::plan {

/// The run of `config` on `gpus` accelerators, and its layout. Fills parallel.data and train.global_batch_size of
/// `config`. Throws InputError for what is not planned: fp64, offloaded activations and moments, an architecture that a
/// program registered, and a batch that the data ranks do not divide.
struct TrainerJob {
  Job job;
  Layout layout;
};
TrainerJob trainer_job(config::Config& config, int64_t gpus, const Accelerator& accelerator);

/// Options of the layout that the trainer does not have yet: "parallel.tensor = 8". Empty: it can run it.
std::vector<std::string> missing_in_trainer(const Layout& layout);

/// `config` with the layout's numbers. Throws InputError that lists missing_in_trainer.
config::Config with_layout(const config::Config& config, const Layout& layout);

/// Tokens of a batch that is not given: 4 Mi, or 1024 an accelerator where that is more; in sequences.
int64_t default_global_batch(int64_t seq_len, int64_t gpus);
/// At most 8192, and what the model is made for.
int64_t default_seq_len(const describe::WorkShape& shape);

}  // namespace trireme::plan
