// The search leaves nothing out: its best layouts are those of simulating every legal layout that fits, and published
// layouts are among what it looks at.
#include "plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/step_time.h"

namespace trireme::plan {
namespace {

Job job_of(const char* model, const char* gpu, int64_t gpus, int64_t batch, int64_t seq_len) {
  Job job;
  job.shape = describe::work_preset(model);
  job.accelerator = accelerator(gpu);
  job.gpus = gpus;
  job.global_batch = batch;
  job.seq_len = seq_len;
  return job;
}

TEST(Search, PruningLosesNothing) {
  const struct {
    const char* model;
    const char* gpu;
    int64_t gpus, batch, seq_len;
  } rows[] = {
      {"llama-125m", "a100-40gb", 4, 16, 1024}, {"llama3-8b", "h100-sxm", 8, 32, 8192},
      {"llama3-8b", "a100-40gb", 16, 32, 4096}, {"mixtral-8x7b", "h100-sxm", 16, 32, 4096},
      {"gpt2-xl", "v100", 12, 24, 1024},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(testing::Message() << row.model << " on " << row.gpus);
    const Job job = job_of(row.model, row.gpu, row.gpus, row.batch, row.seq_len);
    const SearchResult quick = search(job, {}, 5), all = search(job, {}, 5, false);
    EXPECT_EQ(quick.legal, all.legal);
    ASSERT_EQ(quick.best.size(), all.best.size());
    ASSERT_FALSE(all.best.empty());
    for (size_t i = 0; i < all.best.size(); ++i) {
      EXPECT_DOUBLE_EQ(quick.best[i].seconds, all.best[i].seconds) << to_text(all.best[i].layout);
      EXPECT_DOUBLE_EQ(quick.best[i].bytes, all.best[i].bytes);
    }
    EXPECT_LE(quick.simulated, all.simulated);
  }
}

TEST(Search, EveryLayoutIsLegalAndItsNumbersAreItsOwn) {
  const Job job = job_of("llama3-70b", "h100-sxm", 64, 128, 8192);
  const SearchResult result = search(job, {}, 10);
  ASSERT_EQ(result.best.size(), 10u);
  for (const Candidate& candidate : result.best) {
    SCOPED_TRACE(to_text(candidate.layout));
    EXPECT_THAT(layout_faults(job, candidate.layout), testing::IsEmpty());
    EXPECT_DOUBLE_EQ(candidate.seconds, step_time(job, candidate.layout).seconds);
    EXPECT_DOUBLE_EQ(candidate.bytes, memory_plan(job, candidate.layout).most().bytes);
    EXPECT_NE(candidate.verdict, Verdict::does_not_fit);
  }
  for (size_t i = 1; i < result.pareto.size(); ++i) {
    EXPECT_GT(result.pareto[i].seconds, result.pareto[i - 1].seconds);
    EXPECT_LT(result.pareto[i].bytes, result.pareto[i - 1].bytes);
  }
}

TEST(Search, Llama3SimulatesFewLayoutsAndIsNoSlowerThanThePublishedOne) {
  // arXiv:2407.21783, table 4: 16,384 H100, 405B, batch of 16 M tokens, tensor 8 x pipeline 16 x data 128.
  const Job job = job_of("llama3-405b", "h100-sxm", 16384, 2048, 8192);
  const SearchResult result = search(job, {}, 5);
  // What is simulated is what takes time; bench/planner.py measures it.
  EXPECT_LT(result.simulated, result.legal / 20) << result.simulated << " of " << result.legal;
  ASSERT_FALSE(result.best.empty());
  Layout published{.tensor = 8, .pipeline = 16, .data = 128, .shard = Shard::gradients};
  ASSERT_THAT(layout_faults(job, published), testing::IsEmpty());
  EXPECT_LE(result.best.front().seconds, step_time(job, published).seconds);
}

TEST(Search, WhatIsGivenIsKept) {
  const Job job = job_of("llama3-8b", "h100-sxm", 64, 128, 8192);
  SearchSpace space;
  space.tensor = 2;
  space.pipeline = 4;
  space.recompute = Recompute::full;
  for (const Candidate& candidate : search(job, space, 5).best) {
    EXPECT_EQ(candidate.layout.tensor, 2);
    EXPECT_EQ(candidate.layout.pipeline, 4);
    EXPECT_EQ(candidate.layout.recompute, Recompute::full);
  }
}

TEST(Search, WhereNothingFitsTheSmallestIsTold) {
  const Job job = job_of("llama3-405b", "h100-sxm", 8, 8, 8192);
  const SearchResult result = search(job, {}, 5);
  EXPECT_TRUE(result.best.empty());
  ASSERT_TRUE(result.smallest);
  EXPECT_EQ(verdict_on(result.smallest->bytes, job), Verdict::does_not_fit);
}

TEST(Search, RankOfALayout) {
  const Job job = job_of("llama3-8b", "h100-sxm", 8, 32, 8192);
  const SearchResult result = search(job, {}, 3);
  EXPECT_EQ(faster_than(job, {}, result.best.front().layout), 0);
}

}  // namespace
}  // namespace trireme::plan
