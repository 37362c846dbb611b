#include "resilience/failure.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/file.h"

namespace trireme::resilience {

std::string signal_in_words(int signal) {
  const char* name = sigabbrev_np(signal);
  const std::string title =
      name != nullptr ? fmt::format("SIG{} ({})", name, signal) : fmt::format("signal {}", signal);
  switch (signal) {
    case SIGKILL:
      return title + ": someone's kill -9, or the kernel's out-of-memory killer (see `dmesg`)";
    case SIGSEGV:
      return title + ": a segmentation fault";
    case SIGBUS:
      return title + ": a bus error, often a mapped file that was cut short, or a full /dev/shm";
    case SIGABRT:
      return title + ": it aborted itself (a failed check, or an exception that nobody caught)";
    case SIGFPE:
      return title + ": an arithmetic error, such as an integer division by zero";
    case SIGILL:
      return title + ": an instruction that this processor does not have";
    case SIGXCPU:
      return title + ": its limit of CPU time (ulimit -t)";
    case SIGXFSZ:
      return title + ": its limit of file size (ulimit -f)";
    default:
      return title;
  }
}

std::optional<Failure> failure_from_exit(int local_rank, int pid, int wait_status, const WorkerStatus& status,
                                         std::chrono::nanoseconds now, bool oom_killed) {
  Failure failure;
  failure.local_rank = local_rank;
  failure.pid = pid;
  failure.status = status;
  failure.time = status.has_error ? status.error_time : now;
  ExitCode told = ExitCode::internal;
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    failure.killed = signal == SIGKILL;
    failure.what = signal == SIGKILL && oom_killed
                       ? "was killed by SIGKILL (9): the memory limit of its control group was reached"
                       : "was killed by " + signal_in_words(signal);
  } else {
    const int code = WEXITSTATUS(wait_status);
    if (code == static_cast<int>(ExitCode::stopped)) return std::nullopt;
    if (code == static_cast<int>(ExitCode::done)) {
      if (status.phase == Phase::done) return std::nullopt;
      failure.what = "ended with exit code 0 before its work was done (something called exit)";
    } else {
      failure.what = fmt::format("failed with exit code {}", code);
      if (code == 127 && !status.has_error) failure.what += " (a shared library that was not found?)";
    }
    // Codes of ours mean what they say also when the text was lost.
    if (code == static_cast<int>(ExitCode::bad_input) || code == static_cast<int>(ExitCode::worker_failed) ||
        code == static_cast<int>(ExitCode::does_not_fit)) {
      told = static_cast<ExitCode>(code);
    }
  }
  failure.code = status.has_error ? status.error_code : told;
  failure.kind = failure.code == ExitCode::worker_failed ? FailureKind::follower : FailureKind::own;
  return failure;
}

const Failure& root_cause(std::span<const Failure> failures) {
  return *std::ranges::min_element(
      failures, {}, [](const Failure& f) { return std::tuple(f.kind == FailureKind::follower, f.time, f.local_rank); });
}

std::string log_tail(const std::string& path, int64_t offset, int lines, std::string_view indent) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  const FileDescriptor file(fd);
  constexpr int64_t kMost = 16384;  // a line without an end must not flood the terminal
  struct stat status {};
  if (fstat(fd, &status) != 0) return "";
  const int64_t begin = std::max<int64_t>(offset, status.st_size - kMost);
  std::string text(static_cast<size_t>(std::max<int64_t>(0, status.st_size - begin)), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) return "";
  size_t start = text.size();
  for (int line = 0; line < lines && start != std::string::npos && start > 0; ++line) {
    start = text.rfind('\n', start - 1);
  }
  const std::string_view tail = std::string_view(text).substr(start == std::string::npos || start == 0 ? 0 : start + 1);
  std::string result(indent);
  for (const char c : tail) {
    if (c == '\r') continue;
    result += c;
    if (c == '\n') result += indent;
  }
  return result + '\n';
}

}  // namespace trireme::resilience
