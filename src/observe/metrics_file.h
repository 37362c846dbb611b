// RUN/metrics.jsonl: one JSON object a line, a line for each reported step and one for each evaluated
// set or file of questions.
//
// A step:        step loss grad_norm lr tokens tokens_per_second mfu step_time_s data_time_s comm_exposed_s
//                peak_memory_bytes [memory {}] [z_loss] [loss_scale] [layer_grad_norms {name: norm}]
//                [skipped true, skipped_parameter or skipped_spike true]
// An evaluation: step eval_loss eval_bits_per_byte eval_tokens eval_bytes; of a set with a name, each key but step ends
//                in /NAME
// Questions:     step eval_acc/NAME eval_acc_norm/NAME eval_questions/NAME
// in this order. Numbers read back to the same bits. JSON has no NaN and no infinity: they are written as the strings
// "NaN", "Infinity" and "-Infinity", so that every line stays JSON, and float() of most languages reads them.
//
// Contract: one writer, rank 0. A line is appended with one write. Metrics never stop a run: when a line cannot be
// written (disk full), what part of it got there is cut off again, a warning is logged once, and the run goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file.h"
#include "observe/step_record.h"

namespace trireme::observe {

/// One line, without its newline.
std::string to_json_line(const StepRecord& record);
std::string to_json_line(const EvalRecord& record);
std::string to_json_line(const ChoiceRecord& record);

class MetricsFile {
 public:
  /// Opens the file for appending, creates it when it is missing. Throws InputError when that is impossible, before
  /// any training is lost.
  explicit MetricsFile(const std::filesystem::path& path);

  /// Takes the file back to the state that it had after `step`, as a resume from that checkpoint needs: lines with a
  /// greater step go, and so does a torn last line; lines that are not ours (no object, or no step) stay. -1 removes
  /// all of ours: a run from the start. The file is replaced by a rename, so a crash leaves the old or the new one.
  /// Returns the number of lines removed. Call it before the first append. Throws InputError when it cannot be
  /// written.
  int64_t rewind(int64_t step);

  /// Whether a line of `step` has `key`.
  bool has(int64_t step, const std::string& key) const;

  void append(const StepRecord& record);
  void append(const EvalRecord& record);
  void append(const ChoiceRecord& record);

  /// Puts what was appended on the disk. Call it before a checkpoint is committed: then no power failure loses a line
  /// of a step that the checkpoint covers. A failure is reported as that of a line is.
  void sync();

  const std::filesystem::path& path() const { return path_; }

 private:
  void append_line(std::string line);
  void warn_once(std::string_view what, int error);

  std::filesystem::path path_;
  FileDescriptor file_;
  bool warned_ = false;
};

}  // namespace trireme::observe
