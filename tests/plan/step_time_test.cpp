#include "plan/step_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace trireme::plan {
namespace {

Job small_job() {
  Job job;
  job.shape = describe::work_preset("llama3-8b");
  job.seq_len = 8192;
  job.global_batch = 128;
  job.gpus = 64;
  job.accelerator = accelerator("h100-sxm");
  return job;
}

const Layout kLayouts[] = {
    {.data = 64, .micro_batch = 1, .shard = Shard::parameters},
    {.tensor = 4, .pipeline = 4, .data = 4, .recompute = Recompute::full, .shard = Shard::optimizer},
    {.tensor = 2,
     .context = 2,
     .pipeline = 4,
     .virtual_stages = 2,
     .data = 4,
     .recompute = Recompute::selective,
     .schedule = PipelineSchedule::interleaved},
    {.tensor = 8, .pipeline = 8, .data = 1, .schedule = PipelineSchedule::gpipe},
};

TEST(StepTime, TermsAddUpToTheStep) {
  const Job job = small_job();
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(to_text(layout));
    ASSERT_THAT(layout_faults(job, layout), testing::IsEmpty());
    const StepTime time = step_time(job, layout);
    EXPECT_DOUBLE_EQ(std::accumulate(time.terms.begin(), time.terms.end(), 0.0), time.seconds);
    for (const double term : time.terms) EXPECT_GE(term, 0);
  }
}

TEST(StepTime, NothingGetsSlowerByBetterHardware) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(to_text(layout));
    const double before = step_time(small_job(), layout).seconds;
    const auto improved = [&](auto change) {
      Job job = small_job();
      change(job);
      return step_time(job, layout).seconds;
    };
    EXPECT_LE(improved([](Job& job) { job.constants.scale_up_latency_us = job.constants.scale_out_latency_us = 0; }),
              before);
    EXPECT_LE(improved([](Job& job) { job.accelerator.scale_out_gbs *= 2; }), before);
    EXPECT_LE(improved([](Job& job) { job.accelerator.scale_up_gbs *= 2, job.accelerator.peer_gbs *= 2; }), before);
    EXPECT_LT(improved([](Job& job) { job.accelerator.memory_gbs *= 2; }), before);
    EXPECT_LT(improved([](Job& job) { job.accelerator.bf16_tflops *= 2, job.accelerator.matmul_bf16_tflops *= 2; }),
              before);
  }
}

TEST(StepTime, TheBoundIsBelowTheSimulation) {
  const Job job = small_job();
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(to_text(layout));
    StepOptions bound;
    bound.simulate = false;
    EXPECT_LE(step_time(job, layout, bound).seconds, step_time(job, layout).seconds * (1 + 1e-12));
  }
}

TEST(StepTime, WhatIfNeverMakesAStepLonger) {
  const Job job = small_job();
  for (const WhatIf& row : what_if(job, kLayouts[1])) {
    EXPECT_GT(row.saved, 0) << name_of(row.term);
    EXPECT_LT(row.saved, 1) << name_of(row.term);
  }
}

TEST(Layouts, FaultsSayBothNumbersAndWhatWorks) {
  Job job = small_job();
  const Layout wrong{.tensor = 3, .pipeline = 40, .data = 5, .expert = 2, .micro_batch = 7};
  const std::vector<std::string> faults = layout_faults(job, wrong);
  EXPECT_THAT(faults, testing::IsSupersetOf({testing::HasSubstr("tensor = 3 does not divide model.heads = 32; 2 or 4"),
                                             testing::HasSubstr("and there are 64 accelerators"),
                                             testing::HasSubstr("has no experts"),
                                             testing::HasSubstr("is more than model.layers = 32"),
                                             testing::HasSubstr("global batch 128 is not a multiple")}));
}

}  // namespace
}  // namespace trireme::plan
