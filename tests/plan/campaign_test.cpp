// Days, money and goodput against published figures: Llama 3's budget, Daly's and Young's intervals, Meta's tables.
#include "plan/campaign.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "plan/reliability.h"

namespace trireme::plan {
namespace {

Job llama3() {
  Job job;
  job.shape = describe::work_preset("llama3-405b");
  job.accelerator = accelerator("h100-sxm");
  job.seq_len = 8192;
  job.global_batch = 2048;
  job.gpus = 16384;
  return job;
}

TEST(Campaign, Llama3OnSixteenThousand) {
  // 15.6 T tokens at 400 TFLOP/s a GPU (arXiv:2407.21783, table 4): 3.8e25 FLOPs in 67 days.
  const Job job = llama3();
  const double step_tokens = 2048.0 * 8192;
  const double step_s = 6 * 405.853e9 * step_tokens / (16384 * 400e12);
  const Campaign run = plan_campaign(job, step_s, 1, {.tokens = 15.6e12}, {.usd_per_gpu_hour = 2, .watts = 700});
  EXPECT_NEAR(run.flops, 3.8e25, 0.02e25);
  EXPECT_NEAR(run.days, 67, 0.5);
  EXPECT_DOUBLE_EQ(run.usd, 2 * run.gpu_hours);
  EXPECT_NEAR(run.mwh, run.gpu_hours * 0.7 * 1.3 / 1000, 1e-6);
  EXPECT_EQ(run.tonnes_co2, 0);
}

TEST(Campaign, OneBudgetGivesTheOthers) {
  const Job job = llama3();
  const Campaign tokens = plan_campaign(job, 7, 0.9, {.tokens = 1e12}, {});
  const Campaign days = plan_campaign(job, 7, 0.9, {.days = tokens.days}, {});
  const Campaign flops = plan_campaign(job, 7, 0.9, {.flops = tokens.flops}, {});
  EXPECT_NEAR(days.tokens, 1e12, 1);
  EXPECT_NEAR(flops.tokens, 1e12, 1);
  EXPECT_NEAR(plan_campaign(job, 7, 0.45, {.tokens = 1e12}, {}).days, 2 * tokens.days, 1e-9);
  EXPECT_THROW(plan_campaign(job, 7, 1, {.tokens = 1e12, .days = 3}, {}), InputError);
  EXPECT_THROW(plan_campaign(job, 7, 1, {}, {}), InputError);
  EXPECT_THROW(plan_campaign(job, 7, 1, {.days = -1}, {}), InputError);
}

TEST(Campaign, ChinchillasOwnModel) {
  // Hoffmann et al., arXiv:2203.15556: 70 B parameters, 1.4 T tokens. Equation 10 gives 1.937, and approach 3 (table 3
  // of its appendix) about 40 B parameters for Gopher's budget of 5.76e23 FLOPs.
  EXPECT_NEAR(chinchilla(70e9, 1.4e12).loss, 1.937, 0.001);
  const ScalingLaw gopher = chinchilla(67e9, 5.76e23 / 6 / 67e9);
  EXPECT_NEAR(gopher.best_parameters, 40e9, 8e9);
  // The best is not worse than its neighbours on the same budget.
  const double best = chinchilla(gopher.best_parameters, gopher.best_tokens).loss;
  for (const double factor : {0.8, 1.25})
    EXPECT_LT(best, chinchilla(gopher.best_parameters * factor, gopher.best_tokens / factor).loss);
}

TEST(Reliability, PublishedIntervals) {
  // Young: d = 1 min, M = 3 h: 19 min. Daly 2006, figures 3 to 5: d = 5 min, R = 10 min: 117, 57 and 9.1 min.
  EXPECT_NEAR(young_interval_s({.mean_time_between_s = 3 * 3600, .checkpoint_s = 60}) / 60, 19, 0.1);
  const struct { double mtbf_s, minutes; } rows[] = {{24 * 3600, 117}, {6 * 3600, 57}, {15 * 60, 9.1}};
  for (const auto& row : rows) {
    const Failures failures{.mean_time_between_s = row.mtbf_s, .restart_s = 600, .checkpoint_s = 300};
    EXPECT_NEAR(daly_interval_s(failures) / 60 / row.minutes, 1, 0.01);
    // It is the interval of the most goodput.
    const double best = goodput(failures, daly_interval_s(failures));
    EXPECT_GE(best * (1 + 1e-3), goodput(failures, daly_interval_s(failures) * 1.3));
    EXPECT_GE(best * (1 + 1e-3), goodput(failures, daly_interval_s(failures) / 1.3));
  }
  EXPECT_EQ(daly_interval_s({.mean_time_between_s = 60, .checkpoint_s = 300}), 60);
}

TEST(Reliability, Llama3sMachine) {
  // arXiv:2407.21783, section 3.3.4: 466 interruptions in 54 days on 16,384 GPUs, and more than 90 % of the time used.
  const double mtbf = 54 * 86400.0 / 419;  // unexpected ones
  EXPECT_NEAR(mtbf / 3600, 3.09, 0.01);
  EXPECT_NEAR(machine_mtbf_s(mtbf / 3600 * 16384, 16384), mtbf, 1e-6);
  const Failures failures{.mean_time_between_s = mtbf, .restart_s = 300, .checkpoint_s = 30};
  EXPECT_NEAR(goodput(failures, daly_interval_s(failures)), 0.904, 0.002);
  EXPECT_NEAR(goodput_first_order(failures, young_interval_s(failures)), 0.903, 0.002);
}

TEST(Reliability, ClosedFormAgainstDiscreteEvents) {
  for (const double restart : {0.0, 120.0, 600.0}) {
    for (const double mtbf : {1800.0, 11100.0, 86400.0}) {
      const Failures failures{.mean_time_between_s = mtbf, .restart_s = restart, .checkpoint_s = 30};
      const double interval = daly_interval_s(failures);
      EXPECT_NEAR(simulate_goodput(failures, interval, 400'000, 7) / goodput(failures, interval), 1, 0.01)
          << restart << " " << mtbf;
    }
  }
  // Early failures in clusters (shape < 1) leave longer quiet times: more work for the same mean.
  const Failures clustered{.mean_time_between_s = 3600, .restart_s = 300, .checkpoint_s = 30, .shape = 0.7};
  Failures even = clustered;
  even.shape = 1;
  EXPECT_GT(simulate_goodput(clustered, 450, 200'000, 7), simulate_goodput(even, 450, 200'000, 7));
}

TEST(Reliability, Spares) {
  // 1024 machines that fail once in 1000 days and take a day to mend: 1.02 away on average, at most 4 in 99 % of days.
  EXPECT_EQ(spares(1024, 24'000, 24, 0.99), 4);
  EXPECT_EQ(spares(8, 24'000, 24, 0.9), 0);
}

}  // namespace
}  // namespace trireme::plan
