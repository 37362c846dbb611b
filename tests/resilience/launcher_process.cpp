#include "launcher_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "resilience/supervisor.h"

namespace trireme::resilience::testing {
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

LauncherProcess::LauncherProcess(const std::filesystem::path& run_dir, int workers, const std::string& script,
                                 std::vector<std::string> environment, bool reads_output)
    : run_dir_(run_dir), workers_(workers), reads_output_(reads_output), started_(Clock::now()) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  const std::string count = std::to_string(workers);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);  // as a shell does with a job: a signal may go to the whole group
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    unsetenv("OMP_NUM_THREADS");
    for (std::string& entry : environment) putenv(entry.data());
    execl(FAKE_WORKER, FAKE_WORKER, "launch", run_dir_.c_str(), count.c_str(), script.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  output_ = ends[0];
}

LauncherProcess::~LauncherProcess() {
  if (pid_ > 0) kill(pid_, SIGKILL);
  if (output_ >= 0) close(output_);
}

bool LauncherProcess::wait_for_logs(const std::string& text) const {
  const auto deadline = Clock::now() + 10s;
  for (int rank = 0; rank < workers_; ++rank) {
    while (log_of(run_dir_, rank).find(text) == std::string::npos) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(5ms);
    }
  }
  return true;
}

Ended LauncherProcess::wait() {
  Ended ended;
  const auto deadline = Clock::now() + 20s;
  int status = 0;
  const auto drain = [&] {
    char buffer[4096];
    pollfd ready{output_, POLLIN, 0};
    while (poll(&ready, 1, 10) > 0) {
      const ssize_t got = read(output_, buffer, sizeof(buffer));
      if (got <= 0) break;
      ended.output.append(buffer, static_cast<size_t>(got));
    }
  };
  while (true) {
    if (reads_output_) {
      drain();
    } else {
      std::this_thread::sleep_for(10ms);
    }
    const pid_t got = waitpid(pid_, &status, WNOHANG);
    if (got == pid_) break;
    if (Clock::now() > deadline) kill(pid_, SIGKILL);
  }
  ended.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  drain();
  pid_ = -1;
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return ended;
}

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

bool no_process_left(std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (Clock::now() < deadline) {
    const pid_t got = waitpid(-1, nullptr, WNOHANG);
    if (got < 0 && errno == ECHILD) return true;
    if (got == 0) std::this_thread::sleep_for(5ms);
  }
  // Clean up, so that one row's failure does not spoil the next.
  std::ifstream children("/proc/thread-self/children");
  for (pid_t pid = 0; children >> pid;) kill(pid, SIGKILL);
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  return false;
}

std::filesystem::path fresh_folder() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string(info->test_suite_name()) + "." + info->name();
  for (char& c : name) {
    if (c == '/') c = '.';
  }
  const auto folder = std::filesystem::path(TRIREME_BINARY_DIR) / "tests" / "resilience-runs" / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

std::string log_of(const std::filesystem::path& run_dir, int rank) {
  std::ifstream file(log_path(run_dir, rank));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace trireme::resilience::testing
