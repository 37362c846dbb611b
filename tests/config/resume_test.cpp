// What a resumed run may change: where, how fast and how long it runs, never what is learned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/config.h"

namespace trireme::config {
namespace {

Config base(const std::vector<std::string>& overrides = {}) {
  const char* toml =
      "[model]\npreset = \"llama-7m\"\n[data]\npath = \"d\"\n[train]\nsteps = 40\nmicro_batch_size = "
      "2\nglobal_batch_size = 24\n"
      "[lr_schedule]\nsteps = 40\n";
  return parse_config(toml, "run.toml", "/folder", overrides);
}

TEST(Differences, MayOrMayNotChange) {
  const struct {
    const char* change;
    const char* key;
    bool may_change;
  } rows[] = {
      {"train.steps=80", "train.steps", true},
      {"train.stop_after=20", "train.stop_after", true},
      {"checkpoint.interval=1", "checkpoint.interval", true},
      {"checkpoint.keep=1", "checkpoint.keep", true},
      {"eval.interval=1", "eval.interval", true},
      {"metrics.interval=1", "metrics.interval", true},
      {"profile.steps=2", "profile.steps", true},
      {"profile.warmup_steps=2", "profile.warmup_steps", true},
      {"metrics.layer_grad_norms=true", "metrics.layer_grad_norms", true},
      {"parallel.data=4", "parallel.data", true},
      {"comm.backend=shm", "comm.backend", true},
      {"comm.timeout_s=1", "comm.timeout_s", true},
      {"run.dir=elsewhere", "run.dir", true},
      {"run.time_limit_minutes=1", "run.time_limit_minutes", true},
      {"data.path=moved", "data.path", true},
      {"memory.caching_allocator=false", "memory.caching_allocator", true},
      {"train.recompute=full", "train.recompute", true},
      {"model.logit_softcap=30", "model.logit_softcap", false},
      {"train.micro_batch_size=4", "train.micro_batch_size", true},
      {"train.global_batch_size=48", "train.global_batch_size", false},
      {"train.seq_len=64", "train.seq_len", false},
      {"train.precision=fp32", "train.precision", false},
      {"train.clip_grad_norm=0", "train.clip_grad_norm", false},
      {"run.seed=2", "run.seed", false},
      {"run.device=cuda", "run.device", false},
      {"model.layers=4", "model.layers", false},
      {"model.rope_scaling.factor=2", "model.rope_scaling.factor", false},
      {"optimizer.lr=1", "optimizer.lr", false},
      {"optimizer.weight_decay=0", "optimizer.weight_decay", false},
      {"lr_schedule.min_ratio=0", "lr_schedule.min_ratio", false},
      {"lr_schedule.name=linear", "lr_schedule.name", false},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.change);
    const std::vector<Difference> found = differences(base(), base({row.change}));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].key, row.key);
    EXPECT_EQ(found[0].may_change, row.may_change);
    EXPECT_NE(found[0].was, found[0].is);
  }
  EXPECT_TRUE(differences(base(), base()).empty());
}

TEST(Differences, AHorizonThatFollowsTheStepsIsHeldByItsHint) {
  const std::vector<std::string> following = {"lr_schedule.steps=-1", "lr_schedule.warmup_steps=4"};
  std::vector<std::string> longer = following;
  longer.push_back("train.steps=80");
  const std::vector<Difference> found = differences(base(following), base(longer));
  ASSERT_EQ(found.size(), 3u);  // the steps, and the horizon and the decay that follow
  EXPECT_TRUE(found[0].may_change);
  EXPECT_EQ(found[1].key, "lr_schedule.steps");
  EXPECT_FALSE(found[1].may_change);
  EXPECT_THAT(found[1].hint, testing::HasSubstr("lr_schedule.steps = 40 keeps it"));
}

TEST(Differences, WorkersChangeTheLayoutAloneWhenTheBatchIsGiven) {
  Config two = base(), three = base();
  resolve_world(two, 2);
  resolve_world(three, 3);
  for (const Difference& difference : differences(two, three)) EXPECT_TRUE(difference.may_change) << difference.key;
}

// A checkpoint holds every option of its time, also those that are gone.
TEST(SavedConfigs, OfEarlierVersionsAreRead) {
  const Config now = base({"parallel.shard=parameters", "parallel.order=megatron"});
  EXPECT_TRUE(differences(parse_saved_config(to_toml(now)), now).empty());
  const std::string earlier =
      to_toml(base()) + "[comm.emulate.data]\ngb_per_s = 0.0\nlatency_us = 0.0\nhardware = \"\"\n";
  std::string with_order = earlier;
  const std::string line = "order = [\"default\"]";
  ASSERT_NE(with_order.find(line), std::string::npos);
  with_order.replace(with_order.find(line), line.size(),
                     "order = [\"pipeline\", \"data\", \"expert\", \"context\", \"tensor\"]");
  for (const std::string& text : {earlier, with_order})
    EXPECT_TRUE(differences(parse_saved_config(text), base()).empty()) << text;
  EXPECT_THROW(parse_config(earlier, "run.toml", "/"), InputError) << "a user's file still has its faults told";
  EXPECT_THROW(parse_saved_config("[train]\nstep = 1\n"), InputError);
}

}  // namespace
}  // namespace trireme::config
