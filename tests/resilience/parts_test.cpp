// The supervisor's parts, without processes: who is to blame, what is said of an end, CPUs, threads, the status page.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#include "launcher_process.h"
#include "resilience/cpu_share.h"
#include "resilience/failure.h"
#include "resilience/failure_report.h"
#include "resilience/status_page.h"
#include "resilience/terminal.h"
#include "resilience/worker_context.h"

namespace trireme::resilience::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A page as rank `local_rank` opens it.
StatusPage open_as(const StatusPage& page, int local_rank) {
  setenv(StatusPage::kEnvironmentVariable, std::to_string(dup(page.fd())).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(local_rank).c_str(), 1);
  auto opened = StatusPage::from_environment();
  unsetenv("LOCAL_RANK");
  return std::move(*opened);
}

TEST(StatusPage, EachWorkerWritesItsOwnSlot) {
  const StatusPage page = StatusPage::create(3);
  EXPECT_EQ(page.read(1).pid, 0);
  EXPECT_EQ(page.read(1).last_step, -1);
  StatusPage worker = open_as(page, 1);
  worker.set_memory("an older text that is longer than the newer one");
  worker.set_memory("tensors hold 1.5 MiB");
  worker.set_step(41);
  worker.set_phase(Phase::saving);
  EXPECT_TRUE(worker.report_error(ExitCode::bad_input, "first"));
  EXPECT_FALSE(worker.duplicate().report_error(ExitCode::internal, "second"));
  const WorkerStatus status = page.read(1);
  EXPECT_EQ(status.memory, "tensors hold 1.5 MiB");
  EXPECT_EQ(page.read(0).memory, "");
  EXPECT_EQ(status.pid, getpid());
  EXPECT_EQ(status.last_step, 41);
  EXPECT_EQ(status.phase, Phase::saving);
  EXPECT_TRUE(status.has_error);
  EXPECT_EQ(status.error_code, ExitCode::bad_input);
  EXPECT_EQ(status.error, "first");
  EXPECT_FALSE(page.has_error(0) || page.has_error(2));
  EXPECT_EQ(page.read(2).last_step, -1);
}

TEST(StatusPage, CutsALongError) {
  const StatusPage page = StatusPage::create(1);
  open_as(page, 0).report_error(ExitCode::internal, std::string(100'000, 'e'));
  EXPECT_EQ(page.read(0).error.size(), 8192u);
}

TEST(StatusPage, WaitsForThePort) {
  const StatusPage page = StatusPage::create(2);
  StatusPage zero = open_as(page, 0);
  StatusPage one = open_as(page, 1);
  EXPECT_THROW(one.await_port(20ms), WorkerError);
  std::thread host([&] {
    std::this_thread::sleep_for(20ms);
    zero.publish_port(29500);
  });
  EXPECT_EQ(one.await_port(5s), 29500);
  host.join();
}

TEST(StatusPage, PortWaitEndsWhenRankZeroFails) {
  const StatusPage page = StatusPage::create(2);
  open_as(page, 0).report_error(ExitCode::bad_input, "the port is taken");
  StatusPage one = open_as(page, 1);
  try {
    one.await_port(60s);
    FAIL() << "expected an error";
  } catch (const WorkerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the port is taken"));
  }
}

TEST(StatusPage, RefusesWhatIsNotAPage) {
  EXPECT_FALSE(StatusPage::from_environment());
  const auto refuses = [](const std::string& fd, const std::string& rank) {
    setenv(StatusPage::kEnvironmentVariable, fd.c_str(), 1);
    setenv("LOCAL_RANK", rank.c_str(), 1);
    EXPECT_THROW(StatusPage::from_environment(), InternalError) << fd << " " << rank;
  };
  refuses("999", "0");
  refuses("pipe", "0");
  const int zeros = memfd_create("zeros", 0);
  ASSERT_EQ(ftruncate(zeros, 1 << 20), 0);
  refuses(std::to_string(zeros), "0");
  const StatusPage page = StatusPage::create(2);
  refuses(std::to_string(dup(page.fd())), "2");
  unsetenv(StatusPage::kEnvironmentVariable);
  unsetenv("LOCAL_RANK");
}

Failure failure(int rank, FailureKind kind, std::chrono::nanoseconds time) {
  Failure f;
  f.local_rank = rank;
  f.kind = kind;
  f.time = time;
  return f;
}

TEST(RootCause, OwnBeforeFollowerThenTheEarliest) {
  constexpr auto own = FailureKind::own;
  constexpr auto follower = FailureKind::follower;
  const struct {
    const char* name;
    std::vector<Failure> failures;
    int rank;
  } rows[] = {
      {"one", {failure(2, own, 5ns)}, 2},
      {"own_later", {failure(0, follower, 1ns), failure(1, own, 9ns)}, 1},
      {"two_own", {failure(0, own, 7ns), failure(1, own, 6ns), failure(2, follower, 1ns)}, 1},
      {"followers", {failure(1, follower, 4ns), failure(0, follower, 5ns)}, 1},
      {"same_time", {failure(3, own, 4ns), failure(1, own, 4ns)}, 1},
  };
  for (const auto& row : rows) EXPECT_EQ(root_cause(row.failures).local_rank, row.rank) << row.name;
}

TEST(FailureFromExit, SaysWhatTheEndWas) {
  const auto exited = [](int code) { return code << 8; };
  const struct {
    const char* name;
    int wait_status;
    Phase phase;
    bool has_error;
    ExitCode error_code;
    bool oom;
    const char* what;  ///< nullptr: a good end
    FailureKind kind;
    ExitCode code;
  } rows[] = {
      {"done", exited(0), Phase::done, false, {}, false, nullptr, {}, {}},
      {"saved", exited(5), Phase::saving, false, {}, false, nullptr, {}, {}},
      {"early",
       exited(0),
       Phase::training,
       false,
       {},
       false,
       "exit code 0 before",
       FailureKind::own,
       ExitCode::internal},
      {"internal", exited(1), Phase::training, true, ExitCode::internal, false, "exit code 1", FailureKind::own,
       ExitCode::internal},
      {"input_untold",
       exited(2),
       Phase::training,
       false,
       {},
       false,
       "exit code 2",
       FailureKind::own,
       ExitCode::bad_input},
      {"peer", exited(3), Phase::training, true, ExitCode::worker_failed, false, "exit code 3", FailureKind::follower,
       ExitCode::worker_failed},
      // It aborted while it unwound from its peer's failure: still a follower.
      {"peer_abort", SIGABRT, Phase::training, true, ExitCode::worker_failed, false, "SIGABRT (6)",
       FailureKind::follower, ExitCode::worker_failed},
      {"does_not_fit",
       exited(4),
       Phase::loading,
       false,
       {},
       false,
       "exit code 4",
       FailureKind::own,
       ExitCode::does_not_fit},
      {"loader",
       exited(127),
       Phase::starting,
       false,
       {},
       false,
       "shared library",
       FailureKind::own,
       ExitCode::internal},
      {"kill", SIGKILL, Phase::training, false, {}, false, "someone's kill -9", FailureKind::own, ExitCode::internal},
      {"oom",
       SIGKILL,
       Phase::training,
       false,
       {},
       true,
       "memory limit of its control group",
       FailureKind::own,
       ExitCode::internal},
      {"bus",
       SIGBUS,
       Phase::training,
       false,
       {},
       false,
       "SIGBUS (7): a bus error",
       FailureKind::own,
       ExitCode::internal},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    WorkerStatus status;
    status.phase = row.phase;
    status.has_error = row.has_error;
    status.error_code = row.error_code;
    const auto result = failure_from_exit(3, 77, row.wait_status, status, 1s, row.oom);
    ASSERT_EQ(result.has_value(), row.what != nullptr);
    if (!result) continue;
    EXPECT_THAT(result->what, HasSubstr(row.what));
    EXPECT_EQ(result->kind, row.kind);
    EXPECT_EQ(result->code, row.code);
  }
}

TEST(FailureReport, CountsRanksOfThisNode) {
  Failure f = failure(1, FailureKind::own, 1ns);
  f.pid = 123;
  f.what = "fell";
  const std::string text = failure_report({.run_dir = "runs/a",
                                           .first_rank = 4,
                                           .failures = std::span(&f, 1),
                                           .bystanders = {},
                                           .tail = "    | x\n",
                                           .flight = "runs/a/flight/dump-x.json",
                                           .behind = "    axis data: rank 5 is behind\n"});
  EXPECT_THAT(text, HasSubstr("rank 5 (pid 123 on "));
  EXPECT_THAT(text, HasSubstr("before its first step was finished, starting"));
  EXPECT_THAT(text, HasSubstr("runs/a/logs/rank-00005.log:\n    | x\n"));
  EXPECT_THAT(text, HasSubstr("  exchange between the workers:\n    axis data: rank 5 is behind\n"));
  EXPECT_THAT(text, HasSubstr("trireme inspect runs/a --flight, and runs/a/flight/dump-x.json\n"));
}

TEST(LogTail, LastLinesOfThisLife) {
  const auto path = (fresh_folder() / "log").string();
  const struct {
    const char* name;
    std::string content;
    int64_t offset;
    std::string tail;
  } rows[] = {
      {"empty", "", 0, ""},
      {"nothing_new", "old\n", 4, ""},
      {"short", "a\nb\n", 0, ">a\n>b\n"},
      {"exact", "a\nb\nc\n", 0, ">a\n>b\n>c\n"},
      {"long", "a\nb\nc\nd\ne\n", 0, ">c\n>d\n>e\n"},
      {"no_end", "a\nb\nc\nd", 0, ">b\n>c\n>d\n"},
      {"offset", "old\nnew\n", 4, ">new\n"},
      {"carriage_returns", "10%\r20%\ndone\n", 0, ">10%20%\n>done\n"},
  };
  for (const auto& row : rows) {
    std::ofstream(path) << row.content;
    EXPECT_EQ(log_tail(path, row.offset, 3, ">"), row.tail) << row.name;
  }
  EXPECT_EQ(log_tail(path + ".missing", 0, 3, ">"), "");
}

TEST(CpuShare, DividesWithoutOverlap) {
  const std::vector<int> five = {0, 1, 4, 5, 7};
  EXPECT_THAT(cpu_share(0, 2, five, 0).cpus, ElementsAre(0, 1));
  EXPECT_THAT(cpu_share(1, 2, five, 0).cpus, ElementsAre(4, 5, 7));
  EXPECT_EQ(cpu_share(1, 2, five, 0).threads, 2);  // as its peer: results follow the size of the team
  EXPECT_THAT(cpu_share(4, 5, five, 0).cpus, ElementsAre(7));
  EXPECT_THAT(cpu_share(0, 6, five, 0).cpus, IsEmpty());
  EXPECT_EQ(cpu_share(0, 6, five, 0).threads, 1);
  EXPECT_THAT(cpu_share(0, 1, five, 2.5).cpus, IsEmpty());
  EXPECT_EQ(cpu_share(0, 1, five, 2.5).threads, 2);
  EXPECT_EQ(cpu_share(0, 4, five, 2.5).threads, 1);
  EXPECT_THAT(cpu_share(0, 1, five, 16).cpus, ElementsAre(0, 1, 4, 5, 7));
}

TEST(ChooseThreads, OverridesTorchrunAndSaysSo) {
  const struct {
    const char* name;
    std::map<std::string, std::string> variables;
    int64_t local;
    double quota;
    int threads;
    bool says;
  } rows[] = {
      {"alone", {}, 1, 0, 8, false},
      {"shared", {}, 2, 0, 4, false},
      {"quota", {}, 2, 5, 2, false},
      {"crowd", {}, 16, 0, 1, false},
      {"user", {{"OMP_NUM_THREADS", "3"}}, 2, 0, 3, false},
      {"user_list", {{"OMP_NUM_THREADS", "6,2"}}, 2, 0, 6, false},
      {"torchrun", {{"OMP_NUM_THREADS", "1"}, {"TORCHELASTIC_RUN_ID", "x"}}, 2, 0, 4, true},
      {"torchrun_user", {{"OMP_NUM_THREADS", "2"}, {"TORCHELASTIC_RUN_ID", "x"}}, 2, 0, 2, false},
      {"torchrun_crowd", {{"OMP_NUM_THREADS", "1"}, {"TORCHELASTIC_RUN_ID", "x"}}, 8, 0, 1, false},
      {"slurm", {{"SLURM_CPUS_PER_TASK", "8"}}, 4, 0, 8, false},
  };
  for (const auto& row : rows) {
    comm::LaunchEnvironment environment;
    environment.local_world_size = row.local;
    const auto choice = choose_threads(
        environment,
        [&](const char* name) {
          const auto found = row.variables.find(name);
          return found == row.variables.end() ? nullptr : found->second.c_str();
        },
        8, row.quota);
    EXPECT_EQ(choice.threads, row.threads) << row.name;
    EXPECT_EQ(!choice.note.empty(), row.says) << row.name;
  }
}

TEST(StopReason, SignalsSetItAndTheFirstStays) {
  const auto folder = fresh_folder();
  install_stop_handlers();
  EXPECT_EQ(stop_reason(folder), StopReason::none);
  std::ofstream(folder / "stop");
  EXPECT_EQ(stop_reason(folder), StopReason::stop_file);
  remove_stop_file(folder);
  EXPECT_EQ(stop_reason(folder), StopReason::none);
  raise(SIGUSR1);
  raise(SIGTERM);
  EXPECT_EQ(stop_reason(folder), StopReason::user_signal);
  EXPECT_EQ(to_string(StopReason::user_signal, folder), "SIGUSR1");
}

TEST(Terminal, DropsWhatAReaderDoesNotTakeAndSaysSo) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Terminal terminal(ends[1], false);
  const std::string block(100'000, 'x');
  for (int i = 0; i < 30; ++i) terminal.show(block);  // 3 MB into a pipe of 64 KiB and a buffer of 1 MiB
  EXPECT_TRUE(terminal.waiting());
  std::string all;
  std::thread reader([&] {
    char buffer[65536];
    for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) all.append(buffer, static_cast<size_t>(got));
  });
  terminal.finish(5000);
  terminal.show("the end\n");
  terminal.finish(5000);
  close(ends[1]);
  reader.join();
  close(ends[0]);
  EXPECT_LT(all.size(), 1'300'000u);
  EXPECT_THAT(all, HasSubstr("bytes of output are not shown"));
  EXPECT_THAT(all, ::testing::EndsWith("the end\n"));
}

TEST(Terminal, OneThatNobodyReadsBlocksNothing) {
  const int ours = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_TRUE(ours >= 0 && grantpt(ours) == 0 && unlockpt(ours) == 0);
  const int theirs = open(ptsname(ours), O_RDWR | O_NOCTTY);
  ASSERT_GE(theirs, 0);
  Terminal terminal(theirs, true);
  for (int i = 0; i < 100; ++i)
    terminal.show(std::string(3000, 'x') + "\n");  // more than a terminal holds; must return
  EXPECT_TRUE(terminal.waiting());
  EXPECT_EQ(fcntl(theirs, F_GETFL) & O_NONBLOCK, 0) << "the shell's terminal stays as it was";
  terminal.finish(50);
  close(theirs);
  close(ours);
}

}  // namespace
}  // namespace trireme::resilience::testing
