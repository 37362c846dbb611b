// A process that ends at any point of a save, without warning, leaves the previous checkpoint; the next save works and
// sweeps up.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/reader.h"
#include "support.h"

namespace trireme::checkpoint {
namespace {

struct Row {
  std::string point;
  int rank;
  int64_t newest;  ///< the step that is complete after the crash
};

class Crash : public ::testing::TestWithParam<Row> {};

TEST_P(Crash, LeavesACompleteCheckpoint) {
  const Row row = GetParam();
  const test::TemporaryFolder run;
  const Store store(run.path());
  const test::Layout layout = test::layouts()[4];  // rows of 2
  const test::Layout all = test::layouts()[0];
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), layout, 10, /*variant=*/1));

  // All ranks die together, as when a node loses power: they are threads of one child. No torch here, so fork is safe.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    test::save_sample(run.path(), layout, 20, 2, [&](std::string_view point, int rank) {
      if (point == row.point && rank == row.rank) ::_exit(77);
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 77) << "the point was not passed: " << status;

  std::vector<std::string> reports;
  Alone alone;
  const auto newest = store.find_newest_loadable(alone, [&](const std::string& text) { reports.push_back(text); });
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->step, row.newest);
  EXPECT_THAT(reports, ::testing::IsEmpty()) << "a crash is not damage";
  EXPECT_EQ(test::load_and_compare(newest->folder, all, row.newest == 10 ? 1 : 2), "");

  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), layout, 20, 3));
  EXPECT_THAT(test::names_in(store.folder()), ::testing::ElementsAre("step-00000010", "step-00000020"));
  EXPECT_EQ(test::load_and_compare(store.step_folder(20), all, 3), "");
}

INSTANTIATE_TEST_SUITE_P(Points, Crash,
                         ::testing::Values(Row{"in_file", 0, 10}, Row{"in_file", 1, 10}, Row{"after_file", 0, 10},
                                           Row{"after_file", 1, 10}, Row{"after_fsync", 0, 10},
                                           Row{"after_fsync", 1, 10}, Row{"before_index", 0, 10},
                                           Row{"before_rename", 0, 10}, Row{"after_rename", 0, 20}),
                         [](const auto& info) { return info.param.point + "_rank" + std::to_string(info.param.rank); });

TEST(SaveFailure, OneRankIsTheSameErrorOnAll) {
  for (const char* point : {"in_file", "after_fsync", "before_index", "before_rename"}) {
    SCOPED_TRACE(point);
    const test::TemporaryFolder run;
    const Store store(run.path());
    const test::Layout layout = test::layouts()[6];  // rows of 4
    ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), layout, 10));
    const int failing = std::string_view(point).starts_with("before") ? 0 : 3;
    const auto errors = test::save_sample(run.path(), layout, 20, 0, [&](std::string_view at, int rank) {
      if (at == point && rank == failing) throw std::runtime_error("the disk is on fire");
    });
    EXPECT_THAT(errors, ::testing::Each(errors[0]));
    EXPECT_THAT(errors[0], ::testing::HasSubstr("step 20 was not saved"));
    EXPECT_THAT(errors[0], ::testing::HasSubstr(fmt::format("rank {}: the disk is on fire", failing)));
    EXPECT_THAT(test::names_in(store.folder()), ::testing::ElementsAre("step-00000010"));
    EXPECT_EQ(test::load_and_compare(store.step_folder(10), layout), "");
  }
}

}  // namespace
}  // namespace trireme::checkpoint
