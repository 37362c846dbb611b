// A launcher of fake workers as a child process, and proof that it leaves no process behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::resilience::testing {

struct Ended {
  int code = -1;       ///< exit code, or -signal
  std::string output;  ///< stdout and stderr
  double seconds = 0;
};

class LauncherProcess {
 public:
  /// Starts `fake_worker launch RUN_DIR workers script`, with more variables ("NAME=value") in its environment.
  /// `reads_output` = false: nobody reads its stdout until it has ended.
  LauncherProcess(const std::filesystem::path& run_dir, int workers, const std::string& script,
                  std::vector<std::string> environment = {}, bool reads_output = true);
  ~LauncherProcess();

  /// Also the id of its process group.
  pid_t pid() const { return pid_; }
  /// Waits until every rank's log holds `text`; false after 10 s.
  bool wait_for_logs(const std::string& text) const;
  /// Waits for the end, at most 20 s (then it is killed, and the code is -9).
  Ended wait();

 private:
  std::filesystem::path run_dir_;
  int workers_;
  pid_t pid_ = -1;
  int output_ = -1;
  bool reads_output_;
  std::chrono::steady_clock::time_point started_;
};

/// Makes this process the one that orphans of its descendants are given to.
void adopt_orphans();
/// True when this process has no children, not even adopted ones, within `patience`. Kills what is left otherwise.
bool no_process_left(std::chrono::milliseconds patience = std::chrono::milliseconds(1000));

/// An empty folder of this test.
std::filesystem::path fresh_folder();
std::string log_of(const std::filesystem::path& run_dir, int rank);

}  // namespace trireme::resilience::testing
