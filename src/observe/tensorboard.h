// TensorBoard event files: what a run tells, as `tensorboard --logdir RUN/tensorboard` reads it.
//
// A file is a sequence of records, each a protocol buffer `Event` between its length and two masked CRC-32C sums
// (tensorflow/tensorboard, summary/writer/record_writer.py and compat/proto/{event,summary}.proto). A resumed run
// writes a new file that begins with a session start at its first step: TensorBoard then drops what earlier files say
// of that step and later ones (backend/event_processing/event_accumulator.py, _CheckForRestartAndMaybePurge).
//
// Contract: one writer, rank 0. An event is appended with one write, so a reader sees it at once and a kill loses
// nothing that was told. As with metrics.jsonl, a file that cannot be written never stops a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "observe/histogram.h"
#include "observe/step_record.h"

namespace trireme::observe {

struct Scalar {
  std::string_view tag;
  double value = 0;  ///< kept as a float, as the format has it
};

class TensorBoardFile {
 public:
  /// Makes FOLDER/events.out.tfevents.SECONDS.HOST.PID.0. `first_step`: the first that will be told; more than 1 starts
  /// a session that takes earlier files' later steps back. Throws InputError when the file cannot be made.
  TensorBoardFile(const std::filesystem::path& folder, int64_t first_step);

  void scalars(int64_t step, std::span<const Scalar> scalars);
  /// An event each; one without a finite value is left out.
  void histograms(int64_t step, std::span<const NamedHistogram> histograms);

  void append(const StepRecord& record);
  void append(const EvalRecord& record);
  void append(const ChoiceRecord& record);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(std::string_view event);

  std::filesystem::path path_;
  FileDescriptor file_;
  bool warned_ = false;
};

/// The parts of the format, for tests against published bytes.
namespace tensorboard {
/// CRC-32C (Castagnoli) of `bytes`.
uint32_t crc32c(std::string_view bytes);
/// Rotated and shifted, so that a sum over data that holds sums is no trivial value.
uint32_t masked_crc32c(std::string_view bytes);
/// The record of one event.
std::string record(std::string_view event);
/// `Event`s: the first of a file; scalars of a step; a histogram.
std::string version_event(double wall_time);
std::string scalars_event(double wall_time, int64_t step, std::span<const Scalar> scalars);
std::string histogram_event(double wall_time, int64_t step, const NamedHistogram& histogram);
}  // namespace tensorboard

}  // namespace trireme::observe
