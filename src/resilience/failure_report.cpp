#include "resilience/failure_report.h"

#include "base/host.h"
#include "resilience/supervisor.h"

namespace trireme::resilience {
namespace {

std::string where(const WorkerStatus& status) {
  std::string text = status.last_step < 0 ? "before its first step was finished"
                                          : fmt::format("last finished step {}", status.last_step);
  return text + fmt::format(", {}", to_string(status.phase));
}

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::string how_to_resume(const std::filesystem::path& run_dir) {
  const std::filesystem::path folder = run_dir / "checkpoints";
  bool any = false;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    any = any || (name.starts_with("step-") && name.find(".tmp") == std::string::npos);
  }
  if (!any) return "there is no checkpoint yet: the same command starts anew";
  return fmt::format("the same command resumes from the newest complete checkpoint in {}", folder.string());
}

std::string failure_report(const ReportInput& input) {
  const Failure& cause = root_cause(input.failures);
  if (cause.status.has_error && is_bad_input(cause)) {
    return cause.status.error;
  }
  const int rank = input.first_rank + cause.local_rank;
  std::string text = fmt::format("rank {} (pid {} on {}) {}\n  where: {}\n", rank, cause.pid, host_name(), cause.what,
                                 where(cause.status));
  if (cause.status.has_error) text += fmt::format("  its error: {}\n", cause.status.error);
  if (cause.killed && !cause.status.memory.empty())
    text += fmt::format("  its memory after that step: {}\n", cause.status.memory);
  // When all that failed only waited for someone, that someone is a worker that is alive and silent.
  if (cause.kind == FailureKind::follower) {
    for (const Bystander& other : input.bystanders) {
      text += fmt::format("  still running then: rank {} (pid {}), {}, silent for {:.1f} s\n", other.rank, other.pid,
                          where(other.status), seconds(other.status.silent_for));
    }
  }
  const std::string log = log_path(input.run_dir, rank).string();
  if (input.tail.empty()) {
    text += fmt::format("  its log, {}, is empty\n", log);
  } else {
    text += fmt::format("  last lines of {}:\n{}", log, input.tail);
  }
  std::string others;
  for (const Failure& failure : input.failures) {
    if (&failure == &cause) continue;
    others +=
        fmt::format("{}rank {} {}", others.empty() ? "" : "; ", input.first_rank + failure.local_rank, failure.what);
  }
  if (!others.empty()) text += fmt::format("  after it: {}\n", others);
  if (!input.behind.empty()) text += "  exchange between the workers:\n" + input.behind;
  if (!input.flight.empty()) {
    text += fmt::format("  their last operations: trireme inspect {} --flight, and {}\n", input.run_dir.string(),
                        input.flight);
  }
  text += "  All workers of this machine have ended";
  if (input.has_checkpoints) text += "; " + how_to_resume(input.run_dir);
  return text + ".";
}

}  // namespace trireme::resilience
