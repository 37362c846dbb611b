// What a person at the terminal sees while a run goes on: a line for each reported step, evaluation, checkpoint and
// skipped step, and a progress bar.
//
// Lines go to standard output, each with one write and at once (no buffer that a kill would lose). They are without
// colour: what the terminal shows is what the log file gets.
//
// The bar is one line on a terminal of its own descriptor, see progress_bar.h. A line and the
// bar must not mix: the console erases the bar before it writes a line, and the bar returns with the next progress().
// A launcher that passes a worker's lines on to the same terminal must itself write "\r\x1b[K" before each of them,
// because the bar may have returned meanwhile.
//
// Only rank 0 has an open console; on the other ranks make a Console::silent(), whose calls do nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "observe/progress_bar.h"
#include "observe/step_record.h"

namespace trireme::observe {

struct ConsoleOptions {
  int output_fd = 1;        ///< -1: silent
  int progress_fd = -1;     ///< -1: no bar
  int64_t total_steps = 0;  ///< of the run; the width of the step column and the bar follow from it
};

class Console {
 public:
  explicit Console(const ConsoleOptions& options);
  static Console silent() { return Console(ConsoleOptions{.output_fd = -1}); }

  /// The line of a step; of a skipped one, the warning with the parameter's name.
  void step(const StepRecord& record);
  void evaluation(const EvalRecord& record);
  void choices(const ChoiceRecord& record);
  /// A checkpoint that is complete: where it lies, its size and how long the run stood still for it.
  void checkpoint(int64_t step, const std::filesystem::path& path, int64_t bytes, double seconds);
  /// Any other text, e.g. the start-up report; ends with exactly one newline.
  void print(std::string_view text);
  /// A line that should catch the eye: resumed, stopped, disk full.
  void warning(std::string_view text);

  /// Moves the bar; cheap, call it after every step. `loss` NaN: not shown.
  void progress(int64_t step, double loss, double seconds_left);
  /// Erases the bar, for the end of the run; so does the destructor.
  void finish();

 private:
  void write_line(std::string_view text);

  ConsoleOptions options_;
  ProgressBar bar_;
};

/// The texts, without newline.
std::string step_line(const StepRecord& record, int64_t total_steps);
std::string skipped_line(const StepRecord& record, int64_t total_steps);
std::string evaluation_line(const EvalRecord& record, int64_t total_steps);
std::string choices_line(const ChoiceRecord& record, int64_t total_steps);

}  // namespace trireme::observe
