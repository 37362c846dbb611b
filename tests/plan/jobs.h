// Jobs that several tests of the planner look at.
#pragma once

#include "plan/job.h"

namespace trireme::plan {

/// A GPT as Megatron-LM trained it in 2021 and 2022 on A100: dropout, scores written out, 2,048 tokens.
inline Job gpt_job(const char* name, int64_t gpus, int64_t batch) {
  Job job;
  job.shape = describe::work_preset(name);
  job.shape.decoder.dropout = 0.1;
  job.seq_len = 2048;
  job.global_batch = batch;
  job.gpus = gpus;
  job.flash = false;
  job.accelerator = accelerator("a100");
  return job;
}

}  // namespace trireme::plan
