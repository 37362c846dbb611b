#include "plan/step_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "plan/explain.h"
#include "plan/memory.h"
#include "plan/timeline.h"

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

// The drawing ends with the step, no rank does two things at once, and each pass has the seconds that the step counts.
TEST(Timeline, IsTheStep) {
  const Job job = small_job();
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(to_text(layout));
    const StepTime time = step_time(job, layout);
    const auto ranks = timeline(job, layout);
    ASSERT_EQ(static_cast<int64_t>(ranks.size()), layout.pipeline);
    double end = 0, busiest = 0;
    for (const std::vector<Slice>& slices : ranks) {
      int64_t forward = 0, backward = 0;
      double now = 0, work = 0;
      for (const Slice& slice : slices) {
        EXPECT_GE(slice.begin, now - 1e-9 * time.seconds);
        now = slice.begin + slice.seconds;
        forward += slice.kind == Slice::Kind::forward ? 1 : 0;
        backward += slice.kind == Slice::Kind::backward ? 1 : 0;
        if (slice.kind == Slice::Kind::exchange || slice.kind == Slice::Kind::update) continue;
        EXPECT_NEAR(std::accumulate(slice.terms.begin(), slice.terms.end(), 0.0), slice.seconds, 1e-12);
        work += slice.seconds;
      }
      EXPECT_EQ(forward, micro_batches(job, layout) * layout.virtual_stages);
      EXPECT_EQ(backward, forward);
      end = std::max(end, now);
      busiest = std::max(busiest, work);
    }
    EXPECT_NEAR(end, time.seconds, 1e-9 * time.seconds);
    const double after = time.terms[static_cast<size_t>(Term::bubble)] +
                         time.terms[static_cast<size_t>(Term::gradients)] +
                         time.terms[static_cast<size_t>(Term::optimizer)];
    EXPECT_NEAR(busiest, time.seconds - after, 1e-9 * time.seconds);
  }
}

// What is explained is what is planned.
TEST(Explain, EveryNumberOfThePlan) {
  const Job job = small_job();
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(to_text(layout));
    const StepTime time = step_time(job, layout);
    double seconds = 0, bytes = 0;
    for (const std::string& name : explained(job, layout)) {
      const Explanation explanation = explain(job, layout, name);
      EXPECT_EQ(explanation.name, name);
      EXPECT_FALSE(explanation.formula.empty() || explanation.numbers.empty() || explanation.source.empty()) << name;
      if (explanation.unit == Explanation::Unit::seconds) seconds += explanation.value;
      if (explanation.unit == Explanation::Unit::bytes) bytes += explanation.value;
    }
    EXPECT_NEAR(seconds, time.seconds, 1e-9 * time.seconds);
    EXPECT_NEAR(bytes, memory_plan(job, layout).most().bytes, 1);
    EXPECT_EQ(explain(job, layout, "MFU").value, time.mfu);
  }
  try {
    static_cast<void>(explain(job, kLayouts[0], "bubbel"));
    ADD_FAILURE() << "not refused";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("there is no \"bubbel\""), testing::HasSubstr("products, ")));
  }
}

// The page's own numbers give the value, for the term that is a plain product.
TEST(Explain, NumbersMultiplyBack) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(to_text(layout));
    const Job job = small_job();
    const Explanation optimizer = explain(job, layout, "optimizer");
    double elements = 0, memory = 0;
    for (const auto& [name, text] : optimizer.numbers) {
      if (name == "elements") elements = std::stod(text);
      if (name == "memory") memory = std::stod(text.substr(text.rfind("= ") + 2)) * 1e9;
    }
    EXPECT_NEAR(optimizer.value, job.constants.optimizer_bytes * elements / memory + job.constants.kernel_gap_us * 1e-6,
                1e-3 * optimizer.value);
  }
}

// Parts of a dense stage are the block's, so that layers x micro-batches of them and the head are the term.
TEST(Explain, PartsAddUp) {
  const Job job = small_job();
  const Layout& layout = kLayouts[0];
  const Explanation products = explain(job, layout, "products");
  double block = 0, head = 0;
  for (const Part& part : products.parts) (part.name == "logits" ? head : block) += part.forward + part.backward;
  const auto batches = static_cast<double>(micro_batches(job, layout));
  EXPECT_NEAR(batches * (32 * block + head), products.value, 1e-9 * products.value);
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
