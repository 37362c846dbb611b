// What a block keeps and multiplies, against closed forms of papers: catches an operation that is missing, counted
// twice, or not divided by the tensor ranks.
#include "plan/operations.h"

#include <gtest/gtest.h>

#include "jobs.h"
#include "plan/network.h"

namespace trireme::plan {
namespace {

using describe::work_preset;

TEST(Operations, KeepWhatKorthikantiCounts) {
  // arXiv:2205.05198, equations 1 to 4 and table 2: bytes a layer, h = 6144, a = 64, s = 2048, b = 4.
  const double s = 2048, b = 4, h = 6144, a = 64;
  const Job job = gpt_job("megatron-22b", 8, 4);
  for (const int64_t t : {1, 2, 8}) {
    const auto tp = static_cast<double>(t);
    const struct {
      const char* name;
      bool sequence_parallel;
      Recompute recompute;
      double bytes;
    } rows[] = {
        {"tensor", false, Recompute::none, s * b * h * (10 + 24 / tp + 5 * a * s / (h * tp))},
        {"tensor and sequence", true, Recompute::none, s * b * h / tp * (34 + 5 * a * s / h)},
        {"selective, tensor", false, Recompute::selective, s * b * h * (10 + 24 / tp)},
        {"selective, both", true, Recompute::selective, 34 * s * b * h / tp},
        {"full", false, Recompute::full, 2 * s * b * h},
    };
    for (const auto& row : rows) {
      SCOPED_TRACE(testing::Message() << row.name << ", tensor " << t);
      const Layout layout{
          .tensor = t, .micro_batch = 4, .sequence_parallel = row.sequence_parallel, .recompute = row.recompute};
      EXPECT_DOUBLE_EQ(kept_bytes(job, layout, block_operations(job, layout, false)), row.bytes);
    }
  }
}

TEST(Operations, WeightsAreTwelveHiddenSquared) {
  const Job job = gpt_job("gpt3-175b", 64, 64);
  const Layout layout{.tensor = 8};
  EXPECT_DOUBLE_EQ(total(block_operations(job, layout, false)).weights, 12.0 * 12288 * 12288 / 8);
}

TEST(Operations, ForwardFlopsAreAThirdOfTheModels) {
  // 24 b s h^2 + 4 b s^2 h a layer (arXiv:2104.04473, appendix).
  const Job job = gpt_job("gpt3-175b", 64, 64);
  const double s = 2048, h = 12288;
  for (const int64_t t : {1, 8}) {
    const Layout layout{.tensor = t};
    EXPECT_DOUBLE_EQ(total(block_operations(job, layout, false)).flops * static_cast<double>(t),
                     24 * s * h * h + 4 * s * s * h);
  }
}

TEST(Operations, ExpertsMultiplyWhatATokenVisits) {
  Job job;
  job.shape = work_preset("mixtral-8x7b");
  job.seq_len = 4096;
  job.global_batch = 8;
  job.gpus = 8;
  const Layout one{.data = 8, .expert = 1}, eight{.data = 8, .expert = 8};
  // 2 active experts of 3 matrices, whatever rank holds them.
  const double experts = 2 * 3 * 2.0 * 4096 * 4096 * 14336;
  const auto routed = [&](const Layout& layout) {
    double flops = 0;
    for (const Op& op : block_operations(job, layout, true)) {
      if (op.name.starts_with("expert ")) flops += op.flops;
    }
    return flops;
  };
  EXPECT_DOUBLE_EQ(routed(one), experts);
  EXPECT_DOUBLE_EQ(routed(eight), experts);
}

TEST(Network, RingsAndTiers) {
  Job job;
  job.accelerator = accelerator("a100");
  job.constants.link_share = 1;
  job.constants.scale_up_latency_us = job.constants.scale_out_latency_us = 0;
  const Network network(job);
  const double bytes = 1e9;
  EXPECT_DOUBLE_EQ(network.seconds(Collective::all_reduce, bytes, {8, 1}), 2 * 7.0 / 8 * bytes / 300e9);
  EXPECT_DOUBLE_EQ(network.seconds(Collective::all_gather, bytes, {8, 1}), 7.0 / 8 * bytes / 300e9);
  // 16 ranks side by side fill two domains: all eight ports of each carry the ring.
  EXPECT_DOUBLE_EQ(network.seconds(Collective::all_reduce, bytes, {16, 1}), 2 * 15.0 / 16 * bytes / (8 * 25e9));
  // Eight apart there is one rank a domain, with one port.
  EXPECT_DOUBLE_EQ(network.seconds(Collective::all_reduce, bytes, {4, 8}), 2 * 3.0 / 4 * bytes / 25e9);
  EXPECT_EQ(network.seconds(Collective::all_reduce, bytes, {1, 1}), 0);
  EXPECT_DOUBLE_EQ(network.transfer(bytes, {2, 8}), bytes / 25e9);
  // Within a domain all but a rank's own part; with one copy a token over two domains half of all crosses; with eight
  // copies nearly every token has one for the other domain, and crosses once.
  EXPECT_DOUBLE_EQ(network.all_to_all(bytes, 2, {8, 1}), 7.0 / 8 * bytes / 300e9);
  EXPECT_DOUBLE_EQ(network.all_to_all(bytes, 1, {16, 1}), bytes / 2 / 25e9);
  EXPECT_DOUBLE_EQ(network.all_to_all(bytes, 8, {16, 1}), 2 * (1 - 1.0 / 256) / 2 * bytes / 8 / 25e9);
}

}  // namespace
}  // namespace trireme::plan
