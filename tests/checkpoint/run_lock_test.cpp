// One live run per folder; a dead one does not block.
#include "checkpoint/run_lock.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "support.h"

namespace trireme::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A child that takes the lock, and lives until it is killed.
class Holder {
 public:
  explicit Holder(const std::filesystem::path& run) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      const RunLock lock = RunLock::acquire(run);
      [[maybe_unused]] const auto told = ::write(ends[1], "x", 1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    char byte = 0;
    ready_ = ::read(ends[0], &byte, 1) == 1;
    ::close(ends[0]);
  }
  ~Holder() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  bool ready_ = false;
};

TEST(RunLock, ALiveRunRefusesASecondAndADeadOneDoesNot) {
  const test::TemporaryFolder folder;
  const auto run = folder.path() / "runs" / "one";
  Holder holder(run);
  ASSERT_TRUE(holder.ready());
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  try {
    RunLock::acquire(run);
    FAIL() << "two runs have the folder";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(fmt::format("process {} on host {}", holder.pid(), host.data())),
                                    HasSubstr(run.string())));
  }
  holder.kill();
  EXPECT_THAT(read_file(run / ".lock"), HasSubstr("pid"));  // left by the kill
  const RunLock lock = RunLock::acquire(run);
  EXPECT_EQ(lock.notice(), "");
}

TEST(RunLock, ACleanEndLeavesNothingToSay) {
  const test::TemporaryFolder run;
  { const RunLock lock = RunLock::acquire(run.path()); }
  EXPECT_EQ(read_file(run.path() / ".lock"), "");
  const RunLock again = RunLock::acquire(run.path());
  EXPECT_EQ(again.notice(), "");
}

TEST(RunLock, AnUncleanEndOnAnotherHostIsTold) {
  const test::TemporaryFolder run;
  std::ofstream(run.path() / ".lock") << R"({"pid": 7, "host": "elsewhere", "since": "2026-01-01T00:00:00Z"})";
  const RunLock lock = RunLock::acquire(run.path());
  EXPECT_THAT(lock.notice(), AllOf(HasSubstr("process 7 on host elsewhere"), HasSubstr("did not end cleanly")));
}

TEST(RunLock, RubbishInTheFileDoesNotMatter) {
  const test::TemporaryFolder run;
  std::ofstream(run.path() / ".lock") << "{{{";
  EXPECT_EQ(RunLock::acquire(run.path()).notice(), "");
}

}  // namespace
}  // namespace trireme::checkpoint
