// A full disk, a limit on file sizes and a folder that cannot be written: the same error on all ranks, earlier
// checkpoints untouched, nothing left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "checkpoint/reader.h"
#include "support.h"

namespace trireme::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void expect_clean_failure(const Store& store, const std::vector<std::string>& errors, const std::string& reason,
                          const test::Layout& layout) {
  EXPECT_THAT(errors, ::testing::Each(errors[0]));
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("step 20 was not saved"), HasSubstr(reason), HasSubstr(store.folder().string())));
  EXPECT_THAT(test::names_in(store.folder()), ::testing::ElementsAre("step-00000010"));
  EXPECT_EQ(test::load_and_compare(store.step_folder(10), layout), "");
}

TEST(FullDisk, IsTheSameErrorOnAllRanks) {
  const test::TemporaryFolder folder;
  // Room for one checkpoint of about 8.3 MB, not for two.
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=13m") != 0) GTEST_SKIP() << "mounting needs privileges";
  const auto run = folder.path() / "run";
  {
    const Store store(run);
    const test::Layout layout = test::layouts()[2];
    const auto first = test::save_sample(run, layout, 10);
    EXPECT_THAT(first, ::testing::Each(""));
    const auto errors = test::save_sample(run, layout, 20);
    expect_clean_failure(store, errors, "No space left on device", layout);
    EXPECT_THAT(errors[0], HasSubstr("are free"));
    // Once there is room, the next save works.
    std::filesystem::remove_all(store.step_folder(10));
    EXPECT_THAT(test::save_sample(run, layout, 30), ::testing::Each(""));
    EXPECT_EQ(test::load_and_compare(store.step_folder(30), layout), "");
  }
  EXPECT_EQ(::umount2(folder.path().c_str(), MNT_DETACH), 0);
}

TEST(FullDisk, AFileSizeLimitIsNamedToo) {
  const test::TemporaryFolder run;
  const Store store(run.path());
  const test::Layout layout = test::layouts()[1];
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), layout, 10));
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit tight { 1 << 20, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const auto errors = test::save_sample(run.path(), layout, 20);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old);
  expect_clean_failure(store, errors, "File too large", layout);
}

TEST(FullDisk, AReadOnlyFolderIsNamed) {
  const test::TemporaryFolder folder;
  const auto run = folder.path() / "run";
  std::filesystem::create_directories(run);
  const test::Layout layout = test::layouts()[1];
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run, layout, 10));
  const Store store(run);
  const bool mounted = ::mount(run.c_str(), run.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
                       ::mount(nullptr, run.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
  if (!mounted && ::geteuid() == 0) GTEST_SKIP() << "root writes anywhere, and mounting is not allowed";
  if (!mounted) ::chmod(store.folder().c_str(), 0555);
  const auto errors = test::save_sample(run, layout, 20);
  expect_clean_failure(store, errors, mounted ? "Read-only file system" : "Permission denied", layout);
  if (mounted) {
    ::umount2(run.c_str(), MNT_DETACH);
  } else {
    ::chmod(store.folder().c_str(), 0755);
  }
}

}  // namespace
}  // namespace trireme::checkpoint
