// The supervisor against workers that really fail: who is named, what is said, how soon, and that nothing is left.
#include "resilience/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <thread>

#include "launcher_process.h"

namespace trireme::resilience::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

struct Scenario {
  const char* name;
  int workers;
  const char* script;
  int code;
  std::vector<std::string> says;
  std::vector<std::string> never_says;
};
std::ostream& operator<<(std::ostream& out, const Scenario& row) { return out << row.name; }

class SupervisorScenario : public ::testing::TestWithParam<Scenario> {};

TEST_P(SupervisorScenario, NamesTheCauseWithinFiveSecondsAndLeavesNothing) {
  adopt_orphans();
  const Scenario& row = GetParam();
  LauncherProcess launcher(fresh_folder(), row.workers, row.script);
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.code, row.code) << ended.output;
  for (const auto& text : row.says) EXPECT_THAT(ended.output, HasSubstr(text));
  for (const auto& text : row.never_says) EXPECT_THAT(ended.output, Not(HasSubstr(text)));
  EXPECT_TRUE(no_process_left());
  EXPECT_LT(ended.seconds, 5.0) << ended.output;
}

INSTANTIATE_TEST_SUITE_P(
    All, SupervisorScenario,
    ::testing::Values(
        Scenario{"one_ends_well", 1, "ok", 0, {"all is well\n"}, {"error"}},
        Scenario{"three_end_well", 3, "ok", 0, {"all is well\n"}, {"error"}},
        Scenario{"killed",
                 3,
                 "wait,kill,wait",
                 3,
                 {"error: rank 1 (pid ", "was killed by SIGKILL (9)", "out-of-memory",
                  "last finished step 12, training", "rank-00001.log"},
                 {"rank 0 failed"}},
        Scenario{"segmentation_fault", 2, "wait,segv", 3, {"error: rank 1", "SIGSEGV (11): a segmentation fault"}, {}},
        Scenario{"throws",
                 2,
                 "throw,wait",
                 3,
                 {"error: rank 0", "failed with exit code 1", "its error: the matrix is on fire"},
                 {}},
        // Only the peers' words tell that rank 9 is missing; the one that is silent is listed.
        Scenario{"only_followers",
                 3,
                 "follow,follow,deaf",
                 3,
                 {"error: rank ", "rank 9 did not arrive", "still running then: rank 2", "silent for"},
                 {"error: rank 2"}},
        Scenario{"follower_first",
                 3,
                 "follow,late_segv,follow",
                 3,
                 {"error: rank 1", "SIGSEGV", "after it: rank ", "rank 0 failed with exit code 3",
                  "rank 2 failed with exit code 3"},
                 {"error: rank 0", "error: rank 2"}},
        Scenario{
            "follower_of_a_stopped_peer", 2, "follow,stop", 3, {"error: rank 1", "was stopped by SIGSTOP (19)"}, {}},
        Scenario{"stopped",
                 2,
                 "wait,stop",
                 3,
                 {"rank 1 (pid", "is stopped by SIGSTOP (19); unless", "was stopped by SIGSTOP (19) and not continued"},
                 {}},
        Scenario{"stopped_and_continued", 2, "pause,ok", 0, {"is stopped by SIGSTOP"}, {"error"}},
        Scenario{"bad_input_once", 3, "input", 2, {"error: data/shard-3.bin is damaged\n"}, {"rank", "log"}},
        Scenario{"bad_input_of_one", 2, "follow,input", 2, {"error: data/shard-3.bin is damaged\n"}, {"rank"}},
        Scenario{"exit_0_too_early", 2, "wait,exit0", 3, {"error: rank 1", "exit code 0 before its work was done"}, {}},
        Scenario{"unknown_code", 1, "exit7", 3, {"error: rank 0", "exit code 7"}, {}},
        Scenario{"exception_on_a_thread",
                 2,
                 "wait,terminate",
                 3,
                 {"error: rank 1", "SIGABRT", "nobody caught", "the prefetch thread fell"},
                 {}},
        Scenario{"does_not_end_after_its_error",
                 2,
                 "wait,linger",
                 3,
                 {"error: rank 1", "did not end by itself", "I cannot leave"},
                 {}},
        Scenario{"others_are_deaf_to_sigterm", 3, "kill,deaf,deaf", 3, {"error: rank 0", "SIGKILL"}, {}},
        Scenario{"tail_of_the_log",
                 2,
                 "wait,print",
                 3,
                 {"    | line 15\n", "    | line 29\n", "after the lines"},
                 {"line 14\n"}}),
    [](const auto& row) { return row.param.name; });

struct SignalRow {
  const char* name;
  std::vector<int> signals;
  const char* script;
  int code;
  const char* says;
};
std::ostream& operator<<(std::ostream& out, const SignalRow& row) { return out << row.name; }

class SupervisorSignal : public ::testing::TestWithParam<SignalRow> {};

TEST_P(SupervisorSignal, IsPassedOnAndEndsTheRun) {
  adopt_orphans();
  const SignalRow& row = GetParam();
  const auto folder = fresh_folder();
  LauncherProcess launcher(folder, 2, row.script);
  ASSERT_TRUE(launcher.wait_for_logs("==="));
  for (const int signal : row.signals) {
    std::this_thread::sleep_for(400ms);
    kill(launcher.pid(), signal);
  }
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.code, row.code) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr(row.says));
  EXPECT_LT(ended.seconds, 5.0);
  EXPECT_TRUE(no_process_left());
}

INSTANTIATE_TEST_SUITE_P(
    All, SupervisorSignal,
    ::testing::Values(SignalRow{"terminate", {SIGTERM}, "wait", 5, "stopping: SIGTERM"},
                      SignalRow{"interrupt", {SIGINT}, "wait", 5, "stopping: SIGINT"},
                      SignalRow{"user_signal", {SIGUSR1}, "wait", 5, "stopping: SIGUSR1"},
                      SignalRow{"terminal_gone", {SIGHUP}, "wait", 5, "stopping: SIGHUP"},
                      SignalRow{"second_interrupt", {SIGINT, SIGINT}, "deaf", 3, "ended at once by a second SIGINT"},
                      // Nothing is said by a launcher that is killed; the workers must die all the same.
                      SignalRow{"launcher_killed", {SIGKILL}, "deaf", -SIGKILL, ""}),
    [](const auto& row) { return row.param.name; });

// A terminal that goes away signals every process of its foreground group, not the launcher alone.
TEST(Supervisor, SignalsToTheWholeGroupSaveToo) {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1}) {
    SCOPED_TRACE(strsignal(signal));
    adopt_orphans();
    LauncherProcess launcher(fresh_folder(), 2, "wait");
    ASSERT_TRUE(launcher.wait_for_logs("==="));
    std::this_thread::sleep_for(400ms);
    kill(-launcher.pid(), signal);
    const Ended ended = launcher.wait();
    EXPECT_EQ(ended.code, 5) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("stopping: SIG"));
    EXPECT_TRUE(no_process_left());
  }
}

TEST(Supervisor, SignalBeforeTheWorkerListensIsNotLost) {
  adopt_orphans();
  LauncherProcess launcher(fresh_folder(), 2, "wait");
  ASSERT_TRUE(launcher.wait_for_logs("==="));  // written when the launcher listens, and before the workers start
  kill(launcher.pid(), SIGTERM);
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.code, 5) << ended.output;
  EXPECT_TRUE(no_process_left());
}

TEST(Supervisor, StopFileEndsTheRun) {
  adopt_orphans();
  const auto folder = fresh_folder();
  LauncherProcess launcher(folder, 2, "wait");
  ASSERT_TRUE(launcher.wait_for_logs("==="));
  std::ofstream(folder / "stop");
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.code, 5) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("/stop"));
  EXPECT_TRUE(no_process_left());
}

TEST(Supervisor, SetsTheVariablesThatTorchrunSets) {
  adopt_orphans();
  const auto folder = fresh_folder();
  LauncherProcess launcher(folder, 2, "environment", {"TORCHELASTIC_RUN_ID=7", "RANK=5", "WORLD_SIZE=9"});
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.code, 0) << ended.output;
  const std::string log = log_of(folder, 1);
  for (const char* text :
       {"\nRANK=1\n", "LOCAL_RANK=1\n", "WORLD_SIZE=2\n", "LOCAL_WORLD_SIZE=2\n", "GROUP_RANK=0\n",
        "MASTER_ADDR=127.0.0.1\n", "MASTER_PORT=0\n", "TORCHELASTIC_RUN_ID=-\n", "TRIREME_STATUS_FD=-\n"}) {
    EXPECT_THAT(log, HasSubstr(text));
  }
  EXPECT_THAT(log, Not(HasSubstr("OMP_NUM_THREADS=-")));
}

TEST(Supervisor, KeepsTheUsersThreads) {
  const auto folder = fresh_folder();
  LauncherProcess launcher(folder, 2, "environment", {"OMP_NUM_THREADS=3"});
  EXPECT_EQ(launcher.wait().code, 0);
  EXPECT_THAT(log_of(folder, 1), HasSubstr("threads=3\n"));
}

TEST(Supervisor, RanksLearnThePortOfTheStore) {
  const auto folder = fresh_folder();
  LauncherProcess launcher(folder, 3, "port");
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.code, 0) << ended.output;
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(log_of(folder, rank), HasSubstr("port 4711\n"));
}

TEST(Supervisor, AppendsToTheLogsOfALifeBefore) {
  const auto folder = fresh_folder();
  EXPECT_EQ(LauncherProcess(folder, 2, "throw,wait").wait().code, 3);
  const Ended second = LauncherProcess(folder, 2, "ok,kill").wait();
  EXPECT_EQ(second.code, 3);
  const std::string log = log_of(folder, 0);
  EXPECT_THAT(log, HasSubstr("rank 0 of 2\ntrireme: error: the matrix is on fire\n=== "));
  EXPECT_THAT(log, HasSubstr("all is well\n"));
  // The tail of the second life does not reach into the first.
  EXPECT_THAT(second.output, HasSubstr("rank-00001.log, is empty"));
}

TEST(Supervisor, ATerminalThatDoesNotReadStopsNothing) {
  adopt_orphans();
  const auto folder = fresh_folder();
  LauncherProcess launcher(folder, 2, "flood,wait", {}, /*reads_output=*/false);
  // The whole 4 MB are in the log although nobody reads the terminal (a pipe of 64 KiB).
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (log_of(folder, 0).find("the flood is over") == std::string::npos &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(50ms);
  }
  EXPECT_THAT(log_of(folder, 0).size(), ::testing::Gt(4'000'000u));
  kill(launcher.pid(), SIGTERM);
  EXPECT_EQ(launcher.wait().code, 5);
  EXPECT_TRUE(no_process_left());
}

TEST(Supervisor, SaysWhenTheProgramCannotBeStarted) {
  const Ended ended = LauncherProcess(fresh_folder(), 2, "ok", {"FAKE_PROGRAM=/nonexistent/trireme"}).wait();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.output, HasSubstr("execve of /nonexistent/trireme: No such file"));
}

TEST(Supervisor, SaysWhenTheRunFolderCannotBeWritten) {
  const auto folder = fresh_folder();
  std::ofstream(folder / "logs") << "a file where the folder should be";
  const Ended ended = LauncherProcess(folder, 2, "ok").wait();
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("logs"));
}

}  // namespace
}  // namespace trireme::resilience::testing
