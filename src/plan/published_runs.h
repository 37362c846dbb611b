// Published measurements as jobs of the planner: a table of runs is read, each row becomes a job and a layout or a
// reason why it does not, and predictions are compared with what was measured.
//
// Columns (tab-separated, a header line, "-" where nothing is stated): id, model, shape ("L=48;h=6144;a=64;ffn=24576;
// V=51200", with kv, E, topk, moe_ffn, shared), gpu, n_gpu, TP, PP, VP, CP, EP, DP, dp_mode, mbs, gbs_seq, seq,
// recompute, precision, step_s, tok_s_gpu, mem_gib, conditions.
//
// What rows leave out is taken so: fp16 means Megatron-LM of 2021 and 2022 (scores written out, dropout, gradients in
// fp16 that are exchanged after backward, and sequence parallelism only where "sequence parallel" is stated); all else
// has fused attention, no dropout, sequence parallelism, and an exchange beside backward. ffn = 4 x hidden is a GPT,
// other widths are gated.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/job.h"

namespace trireme::plan {

struct PublishedRun {
  std::string id;
  std::string set;  ///< the id up to the first '-': one source
  std::string model;
  Job job;
  Layout layout;
  double step_s = 0;      ///< measured; 0: not stated
  double memory_gib = 0;  ///< measured; 0: not stated
  std::string skipped;    ///< not empty: why it cannot be predicted

  /// Whether a prediction of its step can be compared with a measurement.
  bool is_timed() const { return skipped.empty() && step_s > 0; }
};

/// Throws InputError for a file that has not the columns.
std::vector<PublishedRun> read_published_runs(const std::filesystem::path& path);

struct ScoredRun {
  const PublishedRun* run = nullptr;  ///< one of those that were scored, which have to outlive this
  double predicted_s = 0;
  double error = 0;  ///< predicted / measured - 1
};
/// Every row that is not skipped, with the row's constants replaced by `constants`.
std::vector<ScoredRun> score(std::span<const PublishedRun> runs, const Constants& constants);

struct Score {
  double mean = 0;      ///< mean of |error|: MAPE
  double most = 0;      ///< largest |error|
  double bias = 0;      ///< mean error
  double spearman = 0;  ///< rank correlation over layouts of the same model and number of accelerators, weighted mean
                        ///< over groups of at least three; NaN when there is none
};
Score summarize(std::span<const ScoredRun> scored);

/// The mean |error| of the best constant MFU over the rows: what a model of time has to beat.
double best_constant_mfu_error(std::span<const PublishedRun> runs);

}  // namespace trireme::plan
