// Bytes against published tables: Korthikanti's figure 1, ZeRO's figure 1, Megatron-LM's own estimates, and properties
// that every layout has.
#include "plan/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "jobs.h"
#include "plan/megatron_memory.h"
#include "plan/operations.h"

namespace trireme::plan {
namespace {

using describe::work_preset;
constexpr double kMiB = 1024.0 * 1024, kGiB = 1024 * kMiB;

Job job_of_51200_tokens(const char* name, int64_t gpus, int64_t batch) {
  Job job = gpt_job(name, gpus, batch);
  job.shape.decoder.vocab = 51200;
  return job;
}

TEST(Memory, KorthikantisFigureOne) {
  // arXiv:2205.05198, figure 1, first pipeline stage; the figures in calculon's validation. GiB, exact.
  const struct {
    const char* model;
    int64_t gpus, pipeline, virtual_stages, micro_batch, batch;
    double none, selective, states;
  } rows[] = {
      {"megatron-22b", 8, 1, 1, 4, 4, 59.25, 9.5625, 45.5625},
      {"gpt3-175b", 64, 8, 3, 1, 64, 66.84375, 12.3515625, 45.5625},
      {"mt-nlg-530b", 280, 35, 3, 1, 280, 114.0234375, 23.076171875, 31.640625},
      {"megatron-1t", 512, 64, 1, 1, 512, 131.25, 26.5625, 32.958984375},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.model);
    const Job job = job_of_51200_tokens(row.model, row.gpus, row.batch);
    Layout layout{.tensor = 8,
                  .pipeline = row.pipeline,
                  .virtual_stages = row.virtual_stages,
                  .micro_batch = row.micro_batch,
                  .sequence_parallel = false};
    if (row.virtual_stages > 1) layout.schedule = PipelineSchedule::interleaved;
    ASSERT_THAT(layout_faults(job, layout), testing::IsEmpty());
    EXPECT_DOUBLE_EQ(activation_bytes(job, layout, 0) / kGiB, row.none);
    // The paper's states: 18 bytes a weight of the blocks.
    const double weights = total(block_operations(job, layout, false)).weights;
    EXPECT_DOUBLE_EQ(
        18 * weights * static_cast<double>(job.shape.decoder.layers) / static_cast<double>(row.pipeline) / kGiB,
        row.states);
    layout.sequence_parallel = true;
    layout.recompute = Recompute::selective;
    EXPECT_DOUBLE_EQ(activation_bytes(job, layout, 0) / kGiB, row.selective);
  }
}

TEST(Memory, ZerosFigureOne) {
  // arXiv:1910.02054, figure 1: 7.5 B parameters on 64 ranks, GB.
  EXPECT_DOUBLE_EQ(zero_state_bytes(7.5e9, 64, Shard::none), 120e9);
  EXPECT_NEAR(zero_state_bytes(7.5e9, 64, Shard::optimizer), 31.4e9, 0.05e9);
  EXPECT_NEAR(zero_state_bytes(7.5e9, 64, Shard::gradients), 16.6e9, 0.05e9);
  EXPECT_NEAR(zero_state_bytes(7.5e9, 64, Shard::parameters), 1.88e9, 0.005e9);
}

TEST(Memory, MegatronsOwnEstimates) {
  // Outputs of megatron/training/theoretical_memory_usage.py (NVIDIA/Megatron-LM, d98e8a6), MiB.
  const struct {
    const char* name;
    const char* model;
    int64_t gpus, batch, seq_len;
    Layout layout;
    double states, activations;
  } rows[] = {
      {"8B, 8 ranks", "llama3-8b", 8, 8, 8192, {.data = 8, .shard = Shard::optimizer}, 57436.9, 36936.1},
      {"8B, 2 x 2 x 2",
       "llama3-8b",
       8,
       32,
       8192,
       {.tensor = 2, .pipeline = 2, .data = 2, .shard = Shard::optimizer},
       22975.5,
       16416.1},
      {"175B", "gpt3-175b", 64, 64, 2048, {.tensor = 8, .pipeline = 8}, 48016.2, 9816.0},
      {"175B interleaved",
       "gpt3-175b",
       64,
       64,
       2048,
       {.tensor = 8, .pipeline = 8, .virtual_stages = 2, .schedule = PipelineSchedule::interleaved},
       48016.2,
       14110.5},
      {"Mixtral",
       "mixtral-8x7b",
       64,
       64,
       4096,
       {.tensor = 2, .pipeline = 4, .data = 8, .expert = 8, .shard = Shard::optimizer},
       17799.1,
       8224.1},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    Job job;
    job.shape = work_preset(row.model);
    if (job.shape.decoder.is_gpt()) job.shape.decoder.vocab = 51200;
    job.gpus = row.gpus;
    job.global_batch = row.batch;
    job.seq_len = row.seq_len;
    job.accelerator = accelerator("h100");
    ASSERT_THAT(layout_faults(job, row.layout), testing::IsEmpty());
    const MegatronMemory memory = megatron_memory(job, row.layout);
    EXPECT_NEAR(memory.weights_and_optimizer / kMiB, row.states, 0.6);
    EXPECT_NEAR(memory.activations / kMiB, row.activations, 0.6);
  }
}

TEST(Memory, ReportedPeaksOfTorchTitan) {
  // pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md and llama3_h200_202506: GiB reserved at the peak, 8B
  // and 70B on H100 of 96 GB and H200.
  const struct {
    const char* name;
    const char* model;
    const char* gpu;
    int64_t gpus, batch, seq_len;
    Precision precision;
    Recompute recompute;
    Layout layout;
    double gib;
  } rows[] = {
      {"8B",
       "llama3-8b",
       "h100-96gb",
       8,
       16,
       8192,
       Precision::bf16,
       Recompute::selective,
       {.data = 8, .micro_batch = 2},
       82.4},
      {"8B fp8",
       "llama3-8b",
       "h100-96gb",
       8,
       16,
       8192,
       Precision::fp8,
       Recompute::selective,
       {.data = 8, .micro_batch = 2},
       76.8},
      {"8B long", "llama3-8b", "h100-96gb", 8, 8, 32768, Precision::fp8, Recompute::full, {.data = 8}, 83.9},
      {"8B context 4",
       "llama3-8b",
       "h100-96gb",
       8,
       2,
       131072,
       Precision::fp8,
       Recompute::full,
       {.context = 4, .data = 2},
       84},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    Job job;
    job.shape = work_preset(row.model);
    job.accelerator = accelerator(row.gpu);
    job.gpus = row.gpus;
    job.global_batch = row.batch;
    job.seq_len = row.seq_len;
    job.precision = row.precision;
    job.selective = Selective::products;
    Layout layout = row.layout;
    layout.recompute = row.recompute;
    layout.shard = Shard::parameters;
    const double gib = most_bytes(job, layout) / kGiB;
    EXPECT_NEAR(gib / row.gib, 1, 0.10) << gib;
  }
}

Job big_job() {
  Job job;
  job.shape = work_preset("llama3-70b");
  job.seq_len = 8192;
  job.global_batch = 256;
  job.gpus = 64;
  job.accelerator = accelerator("h100-sxm");
  return job;
}

TEST(Memory, ItemsAddUpAndTheFullestRankIsTheFullest) {
  const Job job = big_job();
  for (const Layout& layout : {Layout{.tensor = 8, .pipeline = 8}, Layout{.tensor = 4, .pipeline = 2, .data = 8},
                               Layout{.data = 64, .shard = Shard::parameters}}) {
    SCOPED_TRACE(to_text(layout));
    const MemoryPlan plan = memory_plan(job, layout);
    ASSERT_EQ(plan.ranks.size(), static_cast<size_t>(layout.pipeline));
    double most = 0;
    for (const RankMemory& rank : plan.ranks) {
      double sum = 0;
      for (const MemoryItem& item : rank.items) sum += item.bytes;
      EXPECT_DOUBLE_EQ(sum, rank.bytes);
      most = std::max(most, rank.bytes);
    }
    EXPECT_DOUBLE_EQ(plan.most().bytes, most);
    EXPECT_DOUBLE_EQ(most_bytes(job, layout), most);
  }
}

TEST(Memory, MoreMemoryNeverMakesAVerdictWorse) {
  Job job = big_job();
  for (const Layout& layout : {Layout{.tensor = 8, .pipeline = 8}, Layout{.tensor = 8, .data = 8},
                               Layout{.data = 64, .shard = Shard::parameters}}) {
    Verdict before = Verdict::does_not_fit;
    for (double gib = 8; gib < 2000; gib *= 1.3) {
      job.accelerator.memory_gib = gib;
      const Verdict verdict = memory_plan(job, layout).verdict;
      EXPECT_LE(verdict, before) << to_text(layout) << " at " << gib;
      before = verdict;
    }
    EXPECT_EQ(before, Verdict::fits);
  }
}

TEST(Memory, RemediesFitAndAreOrderedByCost) {
  const Job job = big_job();
  const Layout layout{.tensor = 8, .data = 8};
  const MemoryPlan plan = memory_plan(job, layout);
  ASSERT_EQ(plan.verdict, Verdict::does_not_fit);
  const std::vector<Remedy> found = remedies(job, layout);
  ASSERT_FALSE(found.empty());
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(found[i].change);
    EXPECT_THAT(layout_faults(job, found[i].layout), testing::IsEmpty());
    EXPECT_NE(memory_plan(job, found[i].layout).verdict, Verdict::does_not_fit);
    EXPECT_GE(found[i].seconds, found[i > 0 ? i - 1 : 0].seconds);
  }
}

}  // namespace
}  // namespace trireme::plan
