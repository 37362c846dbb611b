// The batch over a world of workers: the arithmetic holds or is shown, and nothing is changed when it does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/config.h"

namespace trireme::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Config with(int64_t micro, int64_t global, int64_t data = -1) {
  Config config;
  config.train.micro_batch_size = micro;
  config.train.global_batch_size = global;
  config.parallel.data = data;
  return config;
}

TEST(World, AccumulationFollows) {
  const struct {
    const char* name;
    int64_t micro, global, data, world;
    int64_t accumulation, resolved_global;
  } rows[] = {
      {"one worker", 4, -1, -1, 1, 1, 4},   {"global follows", 4, -1, -1, 3, 1, 12},
      {"accumulates", 4, 32, -1, 2, 4, 32}, {"same batch, more workers", 4, 32, -1, 8, 1, 32},
      {"data agrees", 4, 32, 4, 4, 2, 32},  {"micro of one", 1, 7, -1, 7, 1, 7},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    Config config = with(row.micro, row.global, row.data);
    EXPECT_EQ(resolve_world(config, row.world), row.accumulation);
    EXPECT_EQ(config.train.global_batch_size, row.resolved_global);
    EXPECT_EQ(config.parallel.data, row.world);
    // Resolving again changes nothing.
    EXPECT_EQ(resolve_world(config, row.world), row.accumulation);
  }
}

TEST(World, RanksThatDivideACopyFollow) {
  const struct {
    Shard shard;
    int64_t size, world;
    int64_t resolved, replicas;
  } rows[] = {{Shard::none, -1, 4, 1, 4},
              {Shard::none, 1, 4, 1, 4},
              {Shard::parameters, -1, 4, 4, 1},
              {Shard::optimizer, 2, 6, 2, 3},
              {Shard::gradients, 1, 3, 1, 3}};
  for (const auto& row : rows) {
    Config config = with(1, -1);
    config.parallel.shard = row.shard;
    config.parallel.shard_size = row.size;
    resolve_world(config, row.world);
    EXPECT_EQ(config.parallel.shard_size, row.resolved);
    EXPECT_EQ(config.parallel.replicas(), row.replicas);
  }
  Config config = with(1, -1);
  config.parallel.shard = Shard::parameters;
  config.parallel.shard_size = 4;
  try {
    resolve_world(config, 6);
    ADD_FAILURE() << "not refused";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("parallel.shard_size = 4: 6 data ranks cannot be divided into copies of 4; 3 or 6 work"));
  }
}

TEST(World, ASecondShardIsOfSeveralGroupsInACopy) {
  const struct {
    int64_t group, size, world;
    const char* message;  // "": it works
  } rows[] = {{2, -1, 4, ""},
              {2, 4, 8, ""},
              {3, -1, 4, "2, true (gather from all of them) and false (keep) work"},
              {4, -1, 6, "the 6 ranks that divide a copy cannot be divided into such groups"},
              {2, -1, 3, "; true (gather from all of them) and false (keep) work"},
              // All are neighbours.
              {4, -1, 4, ""},
              {8, 2, 8, ""},
              {2, -1, 1, ""}};
  for (const auto& row : rows) {
    Config config = with(1, -1);
    config.parallel.shard = Shard::parameters;
    config.parallel.shard_size = row.size;
    config.parallel.reshard_after_forward.group = row.group;
    config.comm.emulate.second_shard.gb_per_s = 1;
    try {
      resolve_world(config, row.world);
      EXPECT_STREQ(row.message, "");
      EXPECT_TRUE(config.parallel.reshard_after_forward.after_forward);
      EXPECT_EQ(config.parallel.reshard_after_forward.group, row.group < config.parallel.shard_size ? row.group : 0);
      // Every worker reads what was resolved, and a link of no second shard is refused.
      EXPECT_EQ(config.comm.emulate.second_shard.gb_per_s, config.parallel.reshard_after_forward.group > 0 ? 1 : 0);
    } catch (const InputError& error) {
      EXPECT_STRNE(row.message, "") << error.what();
      EXPECT_THAT(error.what(), HasSubstr(row.message));
    }
  }
}

TEST(World, WhatIsQuantizedNeedsRanksThatDivideACopy) {
  Config config = with(1, -1);
  config.parallel.shard = Shard::gradients;
  config.parallel.quantize_gradients = Quantize::int8;
  EXPECT_NO_THROW(resolve_world(config, 1));  // there is no exchange at all
  config = with(1, -1);
  config.parallel.shard = Shard::gradients;
  config.parallel.quantize_gradients = Quantize::int8;
  config.parallel.shard_size = 1;
  try {
    resolve_world(config, 4);
    ADD_FAILURE() << "not refused";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("parallel.shard_size = 1 leaves one rank; -1, or another divisor of 4, works"));
  }
}

TEST(World, TellsAllFaultsAtOnce) {
  Config config = with(4, 36, -1);
  config.parallel.shard = Shard::parameters;
  config.parallel.shard_size = 3;
  config.batch_ramp.start = 4;
  config.batch_ramp.increment = 12;
  try {
    resolve_world(config, 8);
    ADD_FAILURE() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.faults(),
                ElementsAre(HasSubstr("parallel.shard_size = 3"), HasSubstr("train.global_batch_size = 36"),
                            HasSubstr("batch_ramp.start = 4"), HasSubstr("batch_ramp.increment = 12")));
  }
}

TEST(World, FaultsShowTheArithmeticAndWhatWorks) {
  const struct {
    const char* name;
    int64_t micro, global, data, world;
    const char* message;
  } rows[] = {
      {"no workers", 4, -1, -1, 0, "0 workers: at least 1"},
      {"negative workers", 4, -1, -1, -2, "-2 workers: at least 1"},
      {"data disagrees", 4, -1, 4, 2,
       "parallel.data 4 x parallel.tensor 1 x parallel.context 1 x parallel.pipeline 1 = 4, and there are 2 workers; "
       "set "
       "parallel.data = 2 (or -1), or start 4 (--workers 4)"},
      {"batch", 4, 36, -1, 2,
       "train.global_batch_size = 36 is not train.micro_batch_size x data ranks x accumulation = 4 x 2 x n = 8 x n; "
       "32 or 40 are; so is 36 with micro batches of 3 or 6"},
      {"batch and ranks", 4, 32, -1, 3, "24 or 36 are; 2 or 4 data ranks divide 32"},
      {"batch too small", 8, 8, -1, 2, "16 is; so is 8 with micro batches of 4"},
      {"no micro batch", 0, -1, -1, 2, "train.micro_batch_size = 0"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    Config config = with(row.micro, row.global, row.data);
    try {
      resolve_world(config, row.world);
      ADD_FAILURE() << "no error";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(row.message));
    }
    EXPECT_TRUE(differences(with(row.micro, row.global, row.data), config).empty()) << "changed by a failed call";
  }
}

}  // namespace
}  // namespace trireme::config
