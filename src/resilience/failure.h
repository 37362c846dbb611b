// One worker's failure: what it was, in words, and which of several is the cause of the others.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "resilience/status_page.h"

namespace trireme::resilience {

enum class FailureKind {
  own,       ///< its own error, its death by a signal, or a stop
  follower,  ///< exit code 3: it says that a peer failed
};

struct Failure {
  int local_rank = 0;
  int pid = 0;
  FailureKind kind = FailureKind::own;
  ExitCode code = ExitCode::internal;  ///< of its own error; internal when it told none
  bool killed = false;                 ///< by SIGKILL
  std::chrono::nanoseconds time{0};    ///< monotonic: when it reported its error, else when its end was seen
  std::string what;                    ///< "was killed by SIGKILL (9): ...", without the subject
  WorkerStatus status;                 ///< its slot at that moment
};

/// What the end of a process was, from waitpid's status and the worker's slot; nullopt for a good end (exit 0 after
/// Phase::done, or exit 5). `oom_killed`: the control group has counted a kill for want of memory during this run.
std::optional<Failure> failure_from_exit(int local_rank, int pid, int wait_status, const WorkerStatus& status,
                                         std::chrono::nanoseconds now, bool oom_killed);

/// Whether it is what the user can mend: the run's fault, not a worker's.
inline bool is_bad_input(const Failure& failure) {
  return failure.code == ExitCode::bad_input || failure.code == ExitCode::does_not_fit;
}

/// The failure that the report is about: own failures before followers, earlier before later. `failures` is not empty.
const Failure& root_cause(std::span<const Failure> failures);

/// "SIGSEGV (11), a segmentation fault": name, number and what it usually means.
std::string signal_in_words(int signal);

/// The last `lines` lines of the file's part after `offset`, each behind `indent`; "" when there are none.
std::string log_tail(const std::string& path, int64_t offset, int lines, std::string_view indent);

}  // namespace trireme::resilience
