// Groups of ranks, against those that Megatron-LM's parallel_state documents and computes.
#include "comm/rank_grid.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace trireme::comm {
namespace {

using Groups = std::vector<std::vector<int64_t>>;
using Axes = std::vector<std::string>;

// The first groups are enough where the rest follow the same rule.
void expect_first(const RankGrid& grid, const Axes& axes, const Groups& expected) {
  Groups found = grid.groups(axes);
  ASSERT_GE(found.size(), expected.size());
  found.resize(expected.size());
  EXPECT_EQ(found, expected) << axes.front();
}

// Megatron-LM, megatron/core/parallel_state.py, the example of initialize_model_parallel: 16 ranks, tensor 2,
// pipeline 4.
TEST(RankGrid, AsMegatronDocuments) {
  const RankGrid grid({{"tensor", 2}, {"context", 1}, {"data", -1}, {"pipeline", 4}}, 16);
  EXPECT_EQ(grid.size("data"), 2);
  EXPECT_EQ(grid.groups(Axes{"tensor"}),
            (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(grid.groups(Axes{"data"}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(grid.groups(Axes{"pipeline"}), (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
}

// By the rule of its RankGenerator, order tp-cp-ep-dp-pp.
TEST(RankGrid, DenseAndExpertViewsOfOneWorld) {
  const RankGrid dense({{"tensor", 2}, {"context", 2}, {"data", 2}, {"pipeline", 2}}, 16);
  expect_first(dense, {"tensor"}, {{0, 1}, {2, 3}});
  expect_first(dense, {"context"}, {{0, 2}, {1, 3}, {4, 6}});
  expect_first(dense, {"data"}, {{0, 4}, {1, 5}, {2, 6}});
  EXPECT_EQ(dense.groups(Axes{"data", "context"}),
            (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}));
  expect_first(dense, {"pipeline"}, {{0, 8}, {1, 9}});
  expect_first(dense, {"tensor", "pipeline"}, {{0, 1, 8, 9}});

  const RankGrid expert({{"expert_tensor", 1}, {"expert", 4}, {"expert_data", 2}, {"pipeline", 2}}, 16);
  expect_first(expert, {"expert"}, {{0, 1, 2, 3}, {4, 5, 6, 7}});
  expect_first(expert, {"expert_data"}, {{0, 4}, {1, 5}});
  require_same_groups(dense, expert, "pipeline");
  // With the pipeline inside, experts that take over the ranks of other axes cannot keep its groups.
  const RankGrid inside({{"tensor", 2}, {"pipeline", 2}, {"data", 4}}, 16);
  const RankGrid other({{"expert", 4}, {"pipeline", 2}, {"expert_data", 2}}, 16);
  EXPECT_THROW(require_same_groups(inside, other, "pipeline"), InputError);
}

TEST(RankGrid, CoordinatesAndGroupsAgree) {
  const RankGrid grid({{"tensor", 2}, {"context", 3}, {"pipeline", 1}, {"shard", 2}, {"replicate", 2}}, 24);
  for (int64_t rank = 0; rank < 24; ++rank) {
    int64_t again = 0, stride = 1;
    for (const GridAxis& axis : grid.axes()) {
      const int64_t at = grid.coordinate(rank, axis.name);
      again += at * stride;
      stride *= axis.size;
      EXPECT_EQ(grid.group_of(rank, Axes{axis.name})[static_cast<size_t>(at)], rank) << axis.name;
    }
    EXPECT_EQ(again, rank);
    EXPECT_EQ(grid.group_of(rank, Axes{}), (std::vector<int64_t>{rank}));
    EXPECT_EQ(grid.group_of(rank, Axes{"tensor", "context", "shard", "replicate"}).size(), 24U);
  }
  const std::string table = grid.table();
  EXPECT_NE(table.find("context          3       2  [0 2 4] [1 3 5] [6 8 10] ... 8 in all\n"), std::string::npos)
      << table;
  EXPECT_EQ(table.find("pipeline"), std::string::npos) << "axes of one rank say nothing";
}

TEST(RankGrid, WhatCannotBeIsTold) {
  const auto faults = [](std::vector<GridAxis> axes, int64_t world) {
    try {
      RankGrid(std::move(axes), world);
    } catch (const InputError& error) {
      return error.faults();
    }
    return std::vector<std::string>();
  };
  EXPECT_EQ(faults({{"tensor", 2}, {"shard", 3}}, 8),
            (Axes{"tensor 2 x shard 3 = 6 does not make up the world of 8 ranks"}));
  EXPECT_EQ(faults({{"tensor", 3}, {"shard", -1}}, 8),
            (Axes{"8 ranks cannot be divided by tensor 3 = 3, so shard cannot follow from them"}));
  EXPECT_EQ(faults({{"tensor", 0}, {"shard", -1}, {"replicate", -1}, {"shard", 1}}, 8).size(), 3U);
  const RankGrid grid({{"tensor", 8}}, 8);
  EXPECT_THROW(grid.size("tensors"), InputError);
}

}  // namespace
}  // namespace trireme::comm
