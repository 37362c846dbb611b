// What a run tells: metrics.jsonl, the terminal's lines and bar. Rank 0 speaks; on other ranks every call does nothing.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "checkpoint/save.h"
#include "observe/console.h"
#include "observe/metrics_file.h"
#include "observe/tensorboard.h"
#include "observe/throughput_meter.h"
#include "train/evaluate.h"
#include "train/session.h"
#include "train/step.h"

namespace trireme::train {

class Reporter {
 public:
  /// `last_step`: where this call of the program ends (train.steps or train.stop_after). `progress_fd`: a terminal for
  /// the bar (WorkerContext::progress), which has to outlive this; -1: none from our own launcher.
  Reporter(const Session& session, int64_t last_step, int progress_fd);

  /// A line to the terminal, for whatever has no form of its own.
  void say(const std::string& text);
  void warn(const std::string& text);
  /// The start-up report. `matmul_rate`: of all ranks together, FLOPs a second; 0: not measured.
  void start(double matmul_rate, int64_t matmul_size, const std::filesystem::path& resumed_from);
  /// Metrics of steps after the one that a run resumes from are taken back.
  void rewind(int64_t step);

  void begin_step() { meter_->begin_step(); }
  /// Every step is shown in the bar; every metrics.interval-th, the last and a skipped one get a line, and every
  /// metrics.histograms-th has histograms of the weights after it and of its gradients. Call it before the next step
  /// touches them.
  void step(const StepResult& result);
  /// Of a held-out set, by its name in eval.sets; empty: data.eval_path.
  void evaluation(const std::string& set, const Evaluation& evaluation);
  /// Of a file of questions, by its name in eval.choices.
  void choices(const std::string& suite, const ChoiceEvaluation& evaluation);
  /// Whether the metrics of the step that the run stands at have no number with this key; false on ranks that do not
  /// speak.
  bool lacks(const std::string& key) const;
  /// Puts the metrics so far on the disk; before a checkpoint that covers their steps.
  void sync();
  void checkpoint(const checkpoint::SaveReport& report);

 private:
  const Session& session_;
  int64_t last_step_;
  observe::Console console_;
  std::unique_ptr<observe::MetricsFile> metrics_;          ///< null on ranks that do not speak
  std::unique_ptr<observe::TensorBoardFile> tensorboard_;  ///< with metrics.tensorboard, from rewind() on
  std::unique_ptr<observe::ThroughputMeter> meter_;        ///< from start() on
};

}  // namespace trireme::train
