// Parameters and FLOPs against what papers print: catches a wrong column of a preset and a mixed-up convention.
#include "plan/flops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace trireme::plan {
namespace {

using describe::work_preset;

TEST(WorkPresets, HavePublishedParameterTotals) {
  for (const describe::WorkPreset& row : describe::work_presets()) {
    SCOPED_TRACE(row.shape.name);
    EXPECT_THAT(describe::work_shape_faults(row.shape), testing::IsEmpty());
    const describe::WorkParameters counts = describe::count_work_parameters(row.shape);
    // Papers round to two or three digits, and count without the blocks of multi-token prediction.
    EXPECT_NEAR(static_cast<double>(counts.total - counts.mtp) / row.published_total, 1, 0.015);
    if (row.published_active > 0) {
      EXPECT_NEAR(static_cast<double>(counts.active) / row.published_active, 1, 0.04);
    }
  }
  // Exact, as the files of the checkpoints hold them.
  EXPECT_EQ(describe::count_work_parameters(work_preset("mixtral-8x7b")).total, 46'702'792'704);
  EXPECT_EQ(describe::count_work_parameters(work_preset("qwen3-30b-a3b")).total, 30'532'122'624);
}

TEST(WorkPresets, AgreeWithTheTrainersCounts) {
  for (const describe::Preset& preset : describe::presets()) {
    SCOPED_TRACE(preset.name);
    const describe::WorkParameters counts = describe::count_work_parameters(work_preset(preset.name));
    EXPECT_EQ(counts.total, preset.parameters);
    EXPECT_EQ(counts.active, preset.parameters);
  }
}

TEST(WorkPresets, AliasesAndNearestName) {
  EXPECT_EQ(work_preset("Llama3-405B").name, "llama3.1-405b");
  try {
    work_preset("mixtral-8x7");
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean \"mixtral-8x7b\"?"));
  }
}

TEST(Flops, Llama3HerdsBudget) {
  // Llama 3 405B: 3.8e25 FLOPs on 15.6 T tokens (arXiv:2407.21783, sections 1 and 3.2.1), 6ND.
  const double flops = flops_per_token(work_preset("llama3-405b"), 8192, FlopConvention::six_n) * 15.6e12;
  EXPECT_NEAR(flops, 3.8e25, 0.02e25);
}

TEST(Flops, NarayananAndPalmAgreeOnAGpt) {
  // 72 B s l h^2 (1 + s/6h + V/12lh) counts the matrices alone; PaLM's adds norms and biases.
  const describe::WorkShape shape = work_preset("gpt3-175b");
  const double narayanan = flops_per_token(shape, 2048, FlopConvention::narayanan);
  EXPECT_NEAR(narayanan / flops_per_token(shape, 2048, FlopConvention::palm), 1, 1e-3);
  EXPECT_LT(flops_per_token(shape, 2048, FlopConvention::palm_causal), narayanan);
  EXPECT_THROW(flops_per_token(work_preset("llama3-8b"), 8192, FlopConvention::narayanan), InputError);
}

TEST(Flops, NarayanansRates) {
  // arXiv:2104.04473, table 1: 145.6 B, 1536 GPUs, batch 2304: 148 TFLOP/s a GPU; the step's time follows from the
  // formula with full recomputation, and was 24.8 s (arXiv:2205.05198 counts MFU by the same).
  describe::WorkShape shape = work_preset("gpt3-175b");
  shape.decoder.layers = 80;
  shape.decoder.vocab = 51200;
  const double step = narayanan_hardware_flops_per_token(shape, 2048) * 2304 * 2048 / (1536 * 148e12);
  EXPECT_NEAR(step, 24.8, 0.1);
}

TEST(Flops, KorthikantisUtilisation) {
  // arXiv:2205.05198, table 5: 530B on 280 GPUs, 37.83 s: MFU 56.0 % of 312 TFLOP/s. Its HFU of 57.0 % counts the
  // recomputed core of attention three times over (1 + s / 3h); it runs once more: 56.4 %.
  Job job;
  job.shape = work_preset("mt-nlg-530b");
  job.shape.decoder.dropout = 0.1;
  job.seq_len = 2048;
  job.global_batch = 280;
  job.gpus = 280;
  job.flash = false;
  const Layout layout{.tensor = 8,
                      .pipeline = 35,
                      .virtual_stages = 3,
                      .recompute = Recompute::selective,
                      .schedule = PipelineSchedule::interleaved};
  const double machine = 280 * 312e12 * 37.83;
  EXPECT_NEAR(flops_per_token(job.shape, 2048, FlopConvention::narayanan) * 280 * 2048 / machine, 0.560, 0.001);
  EXPECT_NEAR(executed_flops(job, layout) / machine, 0.5635, 0.001);
  Layout full = layout;
  full.recompute = Recompute::full;
  EXPECT_NEAR(executed_flops(job, full) / (narayanan_hardware_flops_per_token(job.shape, 2048) * 280 * 2048), 1, 1e-9);
}

}  // namespace
}  // namespace trireme::plan
