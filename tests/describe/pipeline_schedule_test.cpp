// Schedule tables against those of their papers, and bubbles against closed forms.
#include "describe/pipeline_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::describe {
namespace {

PipelineTimes equal_times(int64_t stages, double forward, double backward) {
  return {std::vector<double>(static_cast<size_t>(stages), forward),
          std::vector<double>(static_cast<size_t>(stages), backward), 0};
}

TEST(PipelineSchedule, BubbleIsItsClosedForm) {
  // (p - 1) / (v m) of ideal time: Narayanan et al., arXiv:2104.04473, section 2.2; GPipe and 1F1B have v = 1.
  const struct {
    PipelineSchedule schedule;
    int64_t ranks, chunks, batches;
  } rows[] = {
      {PipelineSchedule::gpipe, 4, 1, 16},       {PipelineSchedule::one_f_one_b, 4, 1, 16},
      {PipelineSchedule::one_f_one_b, 8, 1, 64}, {PipelineSchedule::interleaved, 8, 5, 64},
      {PipelineSchedule::interleaved, 4, 2, 8},  {PipelineSchedule::one_f_one_b, 1, 1, 3},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(testing::Message() << name_of(row.schedule) << " " << row.ranks << " " << row.chunks);
    const auto table = make_pipeline_table(row.schedule, row.ranks, row.chunks, row.batches);
    const PipelineResult result = simulate(table, equal_times(row.ranks * row.chunks, 1, 2));
    const double ideal = 3.0 * static_cast<double>(row.batches * row.chunks);
    const double bubble = static_cast<double>(row.ranks - 1) / static_cast<double>(row.chunks * row.batches);
    EXPECT_NEAR(result.seconds / ideal - 1, bubble, 1e-12);
    EXPECT_NEAR(result.idle_share, bubble / (1 + bubble), 1e-12);
  }
}

TEST(PipelineSchedule, InterleavedOrderIsMegatrons) {
  // Megatron-LM, megatron/core/pipeline_parallel/schedules.py: with 4 ranks, 2 chunks and 8 micro-batches the forwards
  // go 0 1 2 3 through both chunks, then 4 5 6 7; rank 0 warms up with 10 passes, rank 3 with 4.
  const auto table = make_pipeline_table(PipelineSchedule::interleaved, 4, 2, 8);
  std::vector<int> batches, chunks;
  for (const PipelineAction& pass : table.actions[0]) {
    if (!pass.forward) continue;
    batches.push_back(pass.micro_batch);
    chunks.push_back(pass.chunk);
  }
  EXPECT_THAT(batches, testing::ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7));
  EXPECT_THAT(chunks, testing::ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1));
  const auto warm_up = [&](size_t rank) {
    size_t passes = 0;
    while (table.actions[rank][passes].forward) ++passes;
    return passes - 1;  // the last of them belongs to the first pair
  };
  EXPECT_EQ(warm_up(0), 10u);
  EXPECT_EQ(warm_up(3), 4u);
}

TEST(PipelineSchedule, FormulaOfMostInFlightIsThatOfTheTable) {
  for (const auto& [schedule, chunks] : {std::pair(PipelineSchedule::gpipe, 1),
                                         {PipelineSchedule::one_f_one_b, 1},
                                         {PipelineSchedule::interleaved, 2},
                                         {PipelineSchedule::interleaved, 3}}) {
    for (const int64_t ranks : {2, 4, 5}) {
      for (const int64_t batches : {ranks, 3 * ranks}) {
        const auto most = most_in_flight(make_pipeline_table(schedule, ranks, chunks, batches));
        for (int64_t rank = 0; rank < ranks; ++rank)
          EXPECT_EQ(most[static_cast<size_t>(rank)], most_in_flight(schedule, ranks, chunks, batches, rank))
              << name_of(schedule) << " ranks " << ranks << " chunks " << chunks << " batches " << batches;
      }
    }
  }
}

TEST(PipelineSchedule, LeastSecondsIsABound) {
  PipelineTimes uneven{{1, 2, 1.5, 4, 1, 1}, {2, 4, 3, 9, 2, 2}, 0.25};
  const auto one = make_pipeline_table(PipelineSchedule::one_f_one_b, 6, 1, 9);
  EXPECT_LE(least_seconds(uneven, 6, 9), simulate(one, uneven).seconds);
  const auto two = make_pipeline_table(PipelineSchedule::interleaved, 3, 2, 9);
  EXPECT_LE(least_seconds(uneven, 3, 9), simulate(two, uneven).seconds);
  // Exact where all stages take the same.
  EXPECT_DOUBLE_EQ(least_seconds(equal_times(6, 1, 2), 6, 9), simulate(one, equal_times(6, 1, 2)).seconds);
}

TEST(PipelineSchedule, RefusesWhatCannotBe) {
  EXPECT_THROW(make_pipeline_table(PipelineSchedule::one_f_one_b, 2, 2, 4), InputError);
  EXPECT_THROW(make_pipeline_table(PipelineSchedule::gpipe, 0, 1, 4), InputError);
  try {
    make_pipeline_table(PipelineSchedule::interleaved, 4, 2, 6);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("4 or 8"));
  }
}

}  // namespace
}  // namespace trireme::describe
