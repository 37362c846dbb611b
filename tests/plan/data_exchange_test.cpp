// What data ranks exchange and keep for it, against arithmetic by hand: the bytes that tests/end_to_end/test_zeropp.py
// finds on the links of a run, and the two tiers that carry them.
#include "plan/data_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "plan/memory.h"
#include "plan/search.h"
#include "plan/trainer_job.h"

namespace trireme::plan {
namespace {

constexpr double kLayers = 32, kHidden = 4096, kFfn = 11008, kVocab = 4096;
constexpr double kBlock = 4 * kHidden * kHidden + 3 * kHidden * kFfn + 2 * kHidden;
constexpr double kEnds = kVocab * kHidden + kHidden;  // tied
constexpr double kAll = kLayers * kBlock + kEnds;
constexpr double kInt8 = 1 + 4.0 / 256, kInt4 = 0.5 + 4.0 / 256;
constexpr int64_t kMicroBatches = 3;
constexpr double kM = kMicroBatches;

/// 64 H100 in domains of 8, three micro-batches a step.
config::Config config_of(std::vector<std::string> settings) {
  for (const char* setting :
       {"model.layers=32", "model.hidden=4096", "model.ffn=11008", "model.heads=32", "model.kv_heads=32",
        "model.tied=true", "train.micro_batch_size=1", "train.global_batch_size=192"})
    settings.emplace_back(setting);
  return config::load_config(std::filesystem::path(TRIREME_SOURCE_DIR) / "configs/sotu.toml", settings);
}

TrainerJob trainer_job_of(std::vector<std::string> settings, int64_t gpus = 64) {
  config::Config config = config_of(std::move(settings));
  return trainer_job(config, gpus, accelerator("h100-sxm"));
}

/// Seconds on links of 450 GB/s to 7 peers and 50 GB/s to the network, of which 0.7 are reached.
constexpr double kUp = 450e9 * 0.7, kOut = 50e9 * 0.7, kUpLatency = 2e-6, kOutLatency = 10e-6, kMemory = 3350e9 * 0.6;
double far(double bytes) { return 63.0 / 64 * bytes / (8 * kOut) + 7 * kUpLatency + 3 * kOutLatency; }
double near(double bytes, double ranks) { return (ranks - 1) / ranks * bytes / kUp + (ranks - 1) * kUpLatency; }
/// 56 of the 64 are in other domains.
double straight(double bytes) { return 56.0 / 64 * bytes / kOut + kOutLatency; }

/// A step in which nothing else takes time.
double exchange_seconds(const TrainerJob& run, Term term) {
  StepOptions options;
  options.off.fill(true);
  options.off[static_cast<size_t>(term)] = false;
  return step_time(run.job, run.layout, options).seconds;
}

double bytes_of(const TrainerJob& run, std::string_view purpose) {
  const MemoryPlan plan = memory_plan(run.job, run.layout);
  for (const MemoryItem& item : plan.most().items)
    if (item.purpose == purpose) return item.bytes;
  return 0;
}

TEST(DataExchange, SecondsOfAStepOfThreeMicroBatches) {
  // As in a run: everything once a step, and all but the two resident blocks in the other 2m - 1 passes.
  const double again = (kLayers - 2) * kBlock, passes = 2 * kM - 1;
  const double plain_gathers = far(2 * kAll) + passes * far(2 * again), plain_reduces = kM * far(4 * kAll);
  const auto packed = [](double weights, double each) { return weights * ((4 + each) / 64 + each + 2) / kMemory; };
  const auto rounded = [](double each, double residual) {
    return kAll * (63.0 / 64 * (4 + residual + 2 * each) + 8.0 / 64) / kMemory;
  };
  const struct {
    const char* name;
    std::vector<std::string> settings;
    double seconds;
  } rows[] = {
      {"plain", {}, plain_gathers + plain_reduces},
      {"prefetch 5", {"parallel.prefetch=5"}, far(2 * kAll) + passes * far(2 * (kLayers - 6) * kBlock) + plain_reduces},
      {"kept", {"parallel.reshard_after_forward=false"}, far(2 * kAll) + plain_reduces},
      {"second shard of 8",
       {"parallel.reshard_after_forward=8"},
       far(2 * kAll) + passes * near(2 * again, 8) + plain_reduces},
      {"second shard of 4",
       {"parallel.reshard_after_forward=4"},
       far(2 * kAll) + passes * near(2 * again, 4) + plain_reduces},
      {"int8 weights",
       {"parallel.quantize_weights=int8"},
       far(kInt8 * kAll) + packed(kAll, kInt8) + passes * (far(kInt8 * again) + packed(again, kInt8)) + plain_reduces},
      {"int8 weights, second shard",
       {"parallel.quantize_weights=int8", "parallel.reshard_after_forward=8"},
       far(kInt8 * kAll) + packed(kAll, kInt8) + passes * near(2 * again, 8) + plain_reduces},
      {"int8 gradients",
       {"parallel.quantize_gradients=int8"},
       plain_gathers + kM * (straight(kInt8 * kAll) + rounded(kInt8, 0))},
      {"int4 gradients with feedback",
       {"parallel.quantize_gradients=int4", "parallel.quantize_error_feedback=true"},
       plain_gathers + kM * (straight(kInt4 * kAll) + rounded(kInt4, 8))},
      {"int4 gradients once",
       {"parallel.quantize_gradients=int4", "parallel.reduce_every_micro_batch=false"},
       plain_gathers},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<std::string> settings = row.settings;
    settings.emplace_back("parallel.shard=parameters");
    const TrainerJob run = trainer_job_of(settings);
    EXPECT_NEAR(exchange_seconds(run, Term::gather) / row.seconds, 1, 1e-9);
  }
}

TEST(DataExchange, SecondsOnceAStep) {
  const double rounding = kAll * (63.0 / 64 * (4 + 2 * kInt8) + 8.0 / 64) / kMemory;
  const struct {
    const char* name;
    std::vector<std::string> settings;
    double seconds;
  } rows[] = {
      {"none", {}, 2 * far(4 * kAll)},
      {"optimizer", {"parallel.shard=optimizer"}, far(4 * kAll) + far(2 * kAll)},
      {"gradients", {"parallel.shard=gradients"}, far(2 * kAll)},
      {"gradients, reduced once",
       {"parallel.shard=gradients", "parallel.reduce_every_micro_batch=false"},
       far(4 * kAll) + far(2 * kAll)},
      {"optimizer, int8",
       {"parallel.shard=optimizer", "parallel.quantize_gradients=int8"},
       straight(kInt8 * kAll) + rounding + far(2 * kAll)},
      {"parameters", {"parallel.shard=parameters"}, 0},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    TrainerJob run = trainer_job_of(row.settings);
    run.job.overlap_gradients = false;
    EXPECT_NEAR(exchange_seconds(run, Term::gradients), row.seconds, 1e-9 * row.seconds);
  }
}

TEST(DataExchange, MemoryOfWhatIsExchanged) {
  const double places = 2 * kBlock + kEnds, largest = kBlock;
  const struct {
    const char* name;
    std::vector<std::string> settings;
    int64_t gpus;
    double gathered, second, residuals, messages;
  } rows[] = {
      {"plain", {}, 64, 2 * places, 0, 0, 0},
      {"prefetch 3", {"parallel.prefetch=3"}, 64, 2 * (4 * kBlock + kEnds), 0, 0, 0},
      {"kept", {"parallel.reshard_after_forward=false"}, 64, 2 * kAll, 0, 0, 0},
      {"second shard", {"parallel.reshard_after_forward=8"}, 64, 2 * places, 2 * kLayers * kBlock / 8, 0, 0},
      {"int8 weights", {"parallel.quantize_weights=int8"}, 64, 2 * places, 0, 0, kInt8 * places * (1 + 1.0 / 64)},
      {"int4 gradients", {"parallel.quantize_gradients=int4"}, 64, 2 * places, 0, 0, 4 * kInt4 * largest * 63 / 64},
      {"int8 both ways",
       {"parallel.quantize_weights=int8", "parallel.quantize_gradients=int8", "parallel.quantize_error_feedback=true"},
       64,
       2 * places,
       0,
       4 * kAll * 63 / 64,
       kInt8 * (places * (1 + 1.0 / 64) + 4 * largest * 63 / 64)},
      {"int8 both ways alone",  // divided by one, nothing is
       {"parallel.quantize_weights=int8", "parallel.quantize_gradients=int8", "parallel.quantize_error_feedback=true"},
       1,
       0,
       0,
       0,
       0},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<std::string> settings = row.settings;
    settings.emplace_back("parallel.shard=parameters");
    const TrainerJob run = trainer_job_of(settings, row.gpus);
    EXPECT_NEAR(bytes_of(run, "gathered weights"), row.gathered, 1e-9 * kAll);
    EXPECT_NEAR(bytes_of(run, "second shard"), row.second, 1e-9 * kAll);
    EXPECT_NEAR(bytes_of(run, "residuals of gradients"), row.residuals, 1e-9 * kAll);
    EXPECT_NEAR(bytes_of(run, "messages"), row.messages, 1e-9 * kAll);
    const bool rounds = run.job.exchange.reduced_bytes > 0;  // then one block's place is enough
    EXPECT_NEAR(bytes_of(run, "exchange buffers"), row.gpus > 1 ? 4 * (places - (rounds ? kBlock : 0)) : 0,
                1e-9 * kAll);
  }
}

// Of ranks that are fewer than a second shard's, or not a multiple of them, there is none: neither time nor memory of
// a layout know of it. Nor do experts on fewer ranks.
TEST(DataExchange, ASecondShardOnlyWhereItCanBe) {
  const TrainerJob with = trainer_job_of({"parallel.shard=parameters", "parallel.reshard_after_forward=8"});
  Job without = with.job;
  without.exchange.second_shard_ranks = 0;
  int64_t has = 0, lacks = 0;
  SearchSpace space;
  space.shard = Shard::parameters;
  space.pipeline = 1;
  for (const Candidate& candidate : search(with.job, space, 1000).best) {
    SCOPED_TRACE(to_text(candidate.layout));
    const Layout& layout = candidate.layout;
    const int64_t ranks = layout.data * layout.context;
    const bool second = ranks % 8 == 0 && ranks > 8;
    const double seconds = step_time(without, layout).seconds, bytes = most_bytes(without, layout);
    if (second) {
      EXPECT_GT(candidate.bytes, bytes);
      EXPECT_LT(candidate.seconds, seconds);
    } else {
      EXPECT_DOUBLE_EQ(candidate.bytes, bytes);
      EXPECT_DOUBLE_EQ(candidate.seconds, seconds);
    }
    (second ? has : lacks) += 1;
  }
  EXPECT_GT(has, 0);
  EXPECT_GT(lacks, 0);

  Job experts = without;
  experts.shape = describe::work_preset("mixtral-8x7b");
  experts.seq_len = 4096;
  experts.exchange.second_shard_ranks = 4;
  const Network network(experts);
  const Layout layout{.data = 64, .expert = 16, .shard = Shard::parameters};  // 4 ranks have the same experts
  StageParameters parameters;
  parameters.experts = 1e9;
  const DataExchange exchange(experts, layout, network);
  experts.exchange.second_shard_ranks = 0;
  const double among_all = exchange.gather_again(parameters).links;
  experts.exchange.second_shard_ranks = 4;
  EXPECT_DOUBLE_EQ(exchange.gather_again(parameters).links, among_all);
  experts.exchange.second_shard_ranks = 2;
  EXPECT_NE(exchange.gather_again(parameters).links, among_all);
}

// Copies of what is divided: 8 ranks of a domain divide, and 8 domains add up; or 16 of two domains, and 4 pairs of
// domains. What is rounded goes straight, and comes back as sums.
TEST(DataExchange, CopiesAddUpTheirShards) {
  const double again = (kLayers - 2) * kBlock, passes = 2 * kM - 1;
  const auto far_of_16 = [](double bytes) { return 15.0 / 16 * bytes / (8 * kOut) + 7 * kUpLatency + kOutLatency; };
  // One rank of a group in each domain: each has its own port.
  const auto between = [](double bytes, double copies) {
    return (copies - 1) / copies * bytes / kOut + std::log2(copies) * kOutLatency;
  };
  const auto own = kAll / 8, pack = 4 + kInt8;
  const double rounding = kAll * (7.0 / 8 * (4 + 2 * kInt8) + 8.0 / 8) / kMemory;
  const double sums = own * (7.0 / 8 * (pack + kInt8) + 4.0 / 8 + pack / 8 + kInt8 + 4) / kMemory;
  const struct {
    const char* name;
    std::vector<std::string> settings;
    double gather, gradients;
  } rows[] = {
      {"parameters among 8",
       {"parallel.shard=parameters", "parallel.shard_size=8"},
       near(2 * kAll, 8) + passes * near(2 * again, 8) + kM * near(4 * kAll, 8),
       2 * between(4 * own, 8)},
      {"parameters among 16, a second shard of 8",
       {"parallel.shard=parameters", "parallel.shard_size=16", "parallel.reshard_after_forward=8"},
       far_of_16(2 * kAll) + passes * near(2 * again, 8) + kM * far_of_16(4 * kAll),
       2 * between(4 * kAll / 16, 4)},
      {"optimizer among 8",
       {"parallel.shard=optimizer", "parallel.shard_size=8"},
       0,
       near(4 * kAll, 8) + 2 * between(4 * own, 8) + near(2 * kAll, 8)},
      {"gradients among 8, int8",
       {"parallel.shard=gradients", "parallel.shard_size=8", "parallel.quantize_gradients=int8"},
       kM * (7.0 / 8 * kInt8 * kAll / kUp + kUpLatency + rounding),
       7.0 / 8 * kInt8 * own / kOut + kOutLatency + between(kInt8 * own, 8) + sums + near(2 * kAll, 8)},
      {"copies are neighbours",
       {"parallel.shard=gradients", "parallel.shard_size=8",
        "parallel.order=[\"tensor\", \"context\", \"pipeline\", \"replicate\", \"shard\", \"expert\"]"},
       kM * between(4 * kAll, 8),
       2 * near(4 * own, 8) + between(2 * kAll, 8)},
      {"each alone",  // divided by one, nothing is
       {"parallel.shard=parameters", "parallel.shard_size=1"},
       0,
       2 * far(4 * kAll)},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    TrainerJob run = trainer_job_of(row.settings);
    ASSERT_THAT(layout_faults(run.job, run.layout), testing::IsEmpty());
    run.job.overlap_gradients = false;
    EXPECT_NEAR(exchange_seconds(run, Term::gather), row.gather, 1e-9 * row.gather);
    EXPECT_NEAR(exchange_seconds(run, Term::gradients), row.gradients, 1e-9 * row.gradients);
  }
  // Backward hides what goes between copies, but not that they tell each other the sums, nor the rounding.
  const TrainerJob run =
      trainer_job_of({"parallel.shard=parameters", "parallel.shard_size=8", "parallel.quantize_gradients=int8"});
  StepOptions without;
  without.off[static_cast<size_t>(Term::gradients)] = true;
  const double exposed = step_time(run.job, run.layout).seconds - step_time(run.job, run.layout, without).seconds;
  const double told = between(kInt8 * own, 8) + sums, all = told + 7.0 / 8 * kInt8 * own / kOut + kOutLatency;
  EXPECT_GT(exposed, told);
  EXPECT_LT(exposed, 0.9 * all);
}

// Of a copy's ranks, and not of all, each has its share; with rounding what copies lose and send of a share as well.
TEST(DataExchange, MemoryOfCopies) {
  const TrainerJob run = trainer_job_of({"parallel.shard=parameters", "parallel.shard_size=8",
                                         "parallel.quantize_gradients=int8", "parallel.quantize_error_feedback=true"});
  EXPECT_EQ(to_text(run.layout), "data 64, micro-batch 1, recompute none, shard parameters among 8");
  const struct {
    const char* purpose;
    double bytes;
  } rows[] = {
      {"master weights", 4 * kAll / 8},
      {"moments", 8 * kAll / 8},
      {"gradients", 4 * kAll / 8},
      {"exchange buffers", 4 * (kBlock + kEnds)},
      {"residuals of gradients", 4 * kAll * (7.0 / 8 + 1.0 / 8)},
      {"messages", kInt8 * kBlock * (4 * 7.0 / 8 + 2 * (2 * 7.0 / 8 + 1 + 1.0 / 8) / 8)},
      {"communicators", 2 * 0.5 * kGiB},
  };
  for (const auto& row : rows) EXPECT_NEAR(bytes_of(run, row.purpose), row.bytes, 1e-9 * kAll) << row.purpose;
  const TrainerJob second =
      trainer_job_of({"parallel.shard=parameters", "parallel.shard_size=16", "parallel.reshard_after_forward=8"});
  EXPECT_EQ(bytes_of(second, "communicators"), 3 * 0.5 * kGiB);
  const TrainerJob alone = trainer_job_of({"parallel.shard=parameters", "parallel.shard_size=1"});
  EXPECT_NEAR(bytes_of(alone, "weights") + bytes_of(alone, "master weights") + bytes_of(alone, "gradients") +
                  bytes_of(alone, "moments"),
              18 * kAll, 1e-9 * kAll);
  EXPECT_EQ(bytes_of(alone, "gathered weights"), 0);
}

TEST(DataExchange, CopiesThatCannotBeAreRefused) {
  const TrainerJob run = trainer_job_of({"parallel.shard=parameters", "parallel.shard_size=8"});
  Layout layout = run.layout;
  layout.replicas = 24;
  EXPECT_THAT(layout_faults(run.job, layout), testing::ElementsAre(testing::HasSubstr("do not divide data = 64; ")));
  layout.replicas = 8;
  layout.shard = Shard::none;
  EXPECT_THAT(layout_faults(run.job, layout), testing::ElementsAre(testing::HasSubstr("divides nothing; 1 works")));
  config::Config config = config_of({"parallel.shard=parameters", "parallel.shard_size=8"});
  const TrainerJob planned = trainer_job(config, 64, accelerator("h100-sxm"));
  EXPECT_EQ(with_layout(config, planned.layout).parallel.shard_size, 8);
}

// Gradients are there for two blocks and the ends at every level, and nothing else changes: the same bytes travel, the
// same weights are updated.
TEST(DataExchange, UpdatesInBackward) {
  for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
    SCOPED_TRACE(shard);
    std::vector<std::string> settings = {"train.clip_grad_norm=0", std::string("parallel.shard=") + shard};
    const auto planned = [&](int64_t gpus) {
      config::Config config = config_of(settings);
      config.train.global_batch_size = gpus;
      return trainer_job(config, gpus, accelerator("h100-sxm"));
    };
    const TrainerJob whole = planned(64), whole_alone = planned(1);
    settings.emplace_back("optimizer.in_backward=true");
    const TrainerJob run = planned(64), alone = planned(1);
    EXPECT_NEAR(bytes_of(run, "gradients"), 4 * (2 * kBlock + kEnds), 1e-9 * kAll);
    EXPECT_EQ(bytes_of(run, "exchange buffers"), 0);
    EXPECT_NEAR(bytes_of(alone, "gradients"), 4 * (2 * kBlock + kEnds), 1e-9 * kAll);
    EXPECT_DOUBLE_EQ(step_time(run.job, run.layout).seconds, step_time(whole.job, whole.layout).seconds);
    const auto rest = [](const TrainerJob& of) {
      return most_bytes(of.job, of.layout) - bytes_of(of, "gradients") - bytes_of(of, "exchange buffers");
    };
    EXPECT_NEAR(rest(run), rest(whole), 1e-9 * kAll);
    EXPECT_NEAR(rest(alone), rest(whole_alone), 1e-9 * kAll);
  }
}

TEST(DataExchange, UpdatesInBackwardHaveOneMicroBatch) {
  config::Config config =
      config_of({"train.clip_grad_norm=0", "optimizer.in_backward=true", "parallel.shard=parameters"});
  config.train.micro_batch_size = 3;
  config.train.global_batch_size = 192;
  const TrainerJob run = trainer_job(config, 64, accelerator("h100-sxm"));
  const SearchResult found = search(run.job, trainer_space(), 10);
  ASSERT_FALSE(found.best.empty());
  for (const Candidate& candidate : found.best) {
    EXPECT_EQ(candidate.layout.micro_batch, 3) << to_text(candidate.layout);
    config::Config written = with_layout(config, candidate.layout);
    EXPECT_NO_THROW(config::resolve_world(written, 64));
  }
  Layout layout = run.layout;
  layout.micro_batch = 1;
  EXPECT_THAT(layout_faults(run.job, layout), testing::ElementsAre(testing::HasSubstr("micro-batch 3 works")));
  layout = {.pipeline = 2, .data = 32, .micro_batch = 6};
  EXPECT_THAT(layout_faults(run.job, layout), testing::ElementsAre(testing::HasSubstr("pipeline = 2")));
  EXPECT_THAT(
      [&] {
        config.optimizer.offload = config::Offload::disk;
        trainer_job(config, 64, accelerator("h100-sxm"));
      },
      testing::ThrowsMessage<InputError>(testing::HasSubstr("has no rates of hosts and disks")));
}

// What a search says of a layout is what its config file is planned as.
TEST(DataExchange, WrittenConfigsArePlannedAsTheyWereRanked) {
  const std::vector<std::string> settings = {"parallel.shard=parameters", "parallel.reshard_after_forward=8",
                                             "parallel.quantize_weights=int8", "parallel.quantize_gradients=int8",
                                             "parallel.quantize_error_feedback=true"};
  config::Config config = config_of(settings);
  config.train.global_batch_size = 512;
  const TrainerJob run = trainer_job(config, 64, accelerator("h100-sxm"));
  const SearchSpace space = trainer_space();
  std::set<Shard> levels;
  for (const Candidate& candidate : search(run.job, space, 100, false).best) {
    SCOPED_TRACE(to_text(candidate.layout));
    config::Config written = with_layout(config, candidate.layout);
    written.parallel.data = -1;
    const TrainerJob again = trainer_job(written, 64, accelerator("h100-sxm"));
    EXPECT_EQ(again.layout, candidate.layout);
    EXPECT_DOUBLE_EQ(step_time(again.job, again.layout).seconds, candidate.seconds);
    EXPECT_DOUBLE_EQ(most_bytes(again.job, again.layout), candidate.bytes);
    levels.insert(candidate.layout.shard);
  }
  EXPECT_EQ(levels.size(), 3u);  // whole state on each rank does not fit
}

}  // namespace
}  // namespace trireme::plan
