// The checkpoints folder: what counts as a checkpoint, what is kept, and what a user may name.
#include "checkpoint/store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "support.h"

namespace trireme::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

void save_tiny(const fs::path& run, int64_t step) {
  Alone alone;
  const std::byte value{5};
  save(Store(run), {step, {{"w", {1}, {{0}, {1}}, DType::u8, &value, 0, 1}}, {}, {}}, alone);
}

std::vector<int64_t> steps(const Store& store) {
  std::vector<int64_t> result;
  for (const Entry& entry : store.list()) result.push_back(entry.step);
  return result;
}

TEST(Store, ListsOnlyCompleteOnes) {
  const test::TemporaryFolder run;
  const Store store(run.path());
  EXPECT_TRUE(store.list().empty());
  EXPECT_FALSE(store.newest().has_value());
  for (const int64_t step : {20, 10, 123456789}) save_tiny(run.path(), step);
  for (const char* name : {"step-00000030", "step-00000040.tmp-aa", "step-40", "other", ".trash-step-00000001-x"}) {
    fs::create_directories(store.folder() / name);
  }
  std::ofstream(store.folder() / "step-00000040.tmp-aa" / "index.json") << "{}";
  EXPECT_THAT(steps(store), ElementsAre(10, 20, 123456789));
  EXPECT_EQ(store.newest()->folder, store.folder() / "step-123456789");
  store.remove_leftovers();
  EXPECT_THAT(test::names_in(store.folder()),
              ElementsAre("other", "step-00000010", "step-00000020", "step-00000030", "step-123456789", "step-40"));
}

TEST(Store, KeepsTheLast) {
  struct Row {
    std::string name;
    std::vector<int64_t> saved;
    int64_t keep, newest_saved;
    std::vector<int64_t> left;
  };
  const std::vector<Row> rows{{"two of four", {1, 2, 3, 4}, 2, 4, {3, 4}},
                              {"one", {1, 2, 3}, 1, 3, {3}},
                              {"all", {1, 2, 3}, 0, 3, {1, 2, 3}},
                              {"fewer than kept", {1, 2}, 5, 2, {1, 2}},
                              {"a later one, of before the resume, is not counted", {10, 20, 30, 40}, 1, 30, {30, 40}},
                              {"none", {}, 1, 0, {}}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const test::TemporaryFolder run;
    const Store store(run.path());
    for (const int64_t step : row.saved) save_tiny(run.path(), step);
    store.prune(row.keep, row.newest_saved);
    EXPECT_EQ(steps(store), row.left);
    if (!row.saved.empty()) {
      EXPECT_EQ(test::names_in(store.folder()).size(), row.left.size());
    }
  }
}

TEST(Store, AFolderWithoutIndexIsNamedAndTheOneBeforeTaken) {
  const test::TemporaryFolder run;
  const Store store(run.path());
  for (const int64_t step : {10, 20}) save_tiny(run.path(), step);
  fs::remove(store.step_folder(20) / "index.json");
  Alone alone;
  std::vector<std::string> told;
  const auto entry = store.find_newest_loadable(alone, [&](const std::string& text) { told.push_back(text); });
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->step, 10);
  EXPECT_THAT(told, ElementsAre(AllOf(HasSubstr("step-00000020 cannot be loaded"), HasSubstr("index.json"))));
}

TEST(Store, SavingAStepAgainReplacesIt) {
  const test::TemporaryFolder run;
  const Store store(run.path());
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[3], 10, 1));
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[0], 10, 2));
  EXPECT_EQ(test::load_and_compare(store.step_folder(10), test::layouts()[0], 2), "");
  EXPECT_THAT(test::names_in(store.folder()), ElementsAre("step-00000010"));
  EXPECT_THAT(test::names_in(store.step_folder(10)), ElementsAre("index.json", "rank-00000.safetensors"));
}

TEST(Store, ResolvesWhatAUserNames) {
  const test::TemporaryFolder run;
  save_tiny(run.path(), 10);
  save_tiny(run.path(), 20);
  const Store store(run.path());
  fs::create_directories(store.folder() / "step-00000030.tmp-aa");
  fs::create_directories(run.path() / "empty" / "checkpoints");
  std::ofstream(run.path() / "file") << "x";
  EXPECT_EQ(resolve_checkpoint(run.path()).step, 20);
  EXPECT_EQ(resolve_checkpoint(store.folder()).step, 20);
  EXPECT_EQ(resolve_checkpoint(store.step_folder(10)).step, 10);
  EXPECT_EQ(resolve_checkpoint(store.step_folder(10) / "").step, 10);
  struct Row {
    fs::path path;
    std::string message;
  };
  for (const Row& row : std::vector<Row>{{run.path() / "absent", "No such file"},
                                         {run.path() / "file", "is a file"},
                                         {run.path() / "empty", "no complete checkpoint"},
                                         {store.folder() / "step-00000030.tmp-aa", "step-00000020"}}) {
    SCOPED_TRACE(row.path);
    try {
      resolve_checkpoint(row.path);
      ADD_FAILURE() << "was accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(row.message));
    }
  }
}

}  // namespace
}  // namespace trireme::checkpoint
