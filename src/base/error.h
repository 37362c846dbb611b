// Errors of the whole program: libraries throw these, only cli/ turns them into an exit code.
//
// A message says what was expected, what was found with both numbers, and the nearest thing that works. It is written
// in the user's words: the key of the config file, the file's path, the rank.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Exit codes of the program, the same for every command.
enum class ExitCode : int {
  done = 0,
  internal = 1,       ///< a fault of ours, or of the machine
  bad_input = 2,      ///< config, data or arguments: the user can mend it
  worker_failed = 3,  ///< a worker died, stopped or threw
  does_not_fit = 4,   ///< a plan needs more than the hardware has
  stopped = 5,        ///< ended by a signal or a limit, after saving
};

/// Base of every error that Trireme throws.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// What the user gave is wrong. May hold several faults: all that can be found are listed at once.
class InputError : public Error {
 public:
  explicit InputError(const std::string& message) : Error(ExitCode::bad_input, message), faults_{message} {}
  /// One message with all faults, a line each. `faults` must not be empty.
  explicit InputError(std::vector<std::string> faults);
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  std::vector<std::string> faults_;
};

/// A worker or its peer failed: rank, host and what it was doing are in the message.
class WorkerError : public Error {
 public:
  explicit WorkerError(const std::string& message) : Error(ExitCode::worker_failed, message) {}
};

/// A fault of ours or of the machine (a system call failed).
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(ExitCode::internal, message) {}
};

template <typename... Args>
[[noreturn]] void throw_input(fmt::format_string<Args...> format, Args&&... args) {
  throw InputError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
[[noreturn]] void throw_internal(fmt::format_string<Args...> format, Args&&... args) {
  throw InternalError(fmt::format(format, std::forward<Args>(args)...));
}

/// errno in words, with the call and its object: `cannot open data/x.bin: No such file or directory`.
/// Throws InputError for what the user can mend (missing, no permission, not a directory, read-only, disk full, name
/// too long) and InternalError for the rest.
[[noreturn]] void throw_errno(std::string_view what, std::string_view path, int error);

/// The candidate with the smallest edit distance to `word`, or "" when none is near (distance over a third of its
/// length).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace trireme

/// Checks an invariant of ours; a failure is a bug, not bad input. The message tells the values.
#define TRIREME_CHECK(condition, ...)                                                                 \
  do {                                                                                                \
    if (!(condition)) [[unlikely]]                                                                    \
      ::trireme::throw_internal("{}:{}: `{}` does not hold: {}", __FILE_NAME__, __LINE__, #condition, \
                                fmt::format(__VA_ARGS__));                                            \
  } while (false)
#ifndef __FILE_NAME__
#define __FILE_NAME__ __FILE__
#endif
