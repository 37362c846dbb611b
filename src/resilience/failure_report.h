// The text that the user reads when a worker has failed.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "resilience/failure.h"

namespace trireme::resilience {

/// A worker that had not failed when the others did: the one that the others waited for may be among them.
struct Bystander {
  int rank = 0;
  int pid = 0;
  WorkerStatus status;
};

struct ReportInput {
  std::filesystem::path run_dir;
  bool has_checkpoints = true;
  int first_rank = 0;
  std::span<const Failure> failures;  ///< not empty
  std::span<const Bystander> bystanders;
  std::string tail;    ///< last lines of the culprit's log, indented; may be empty
  std::string flight;  ///< path of a dump of the flight recorders; empty: none
  std::string behind;  ///< lines that say which rank is behind at which operation; may be empty
};

/// Bad input and plans that do not fit: the worker's own words, once, since every worker says the same. Else: rank,
/// process, what happened, last finished step, phase, its own error, its log's tail, who followed, and what to do.
std::string failure_report(const ReportInput& input);

/// `the same command resumes from the newest complete checkpoint in RUN/checkpoints`
std::string how_to_resume(const std::filesystem::path& run_dir);

}  // namespace trireme::resilience
