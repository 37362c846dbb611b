// Fitting the four constants of a kind of accelerator and its software to measured steps.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/published_runs.h"

namespace trireme::plan {

/// The four constants that are fitted, from where the search starts: matmul_share, memory_share, link_share,
/// kernel_gap_us. Bounded to what a machine can do (shares at most 1, gaps at most 50 us).
struct Calibration {
  Constants constants;
  double mean_error = 0;  ///< of the rows that it was fitted to
  size_t rows = 0;
};

/// Least mean |error| over the rows that are not skipped, by the simplex method (Nelder and Mead, 1965); the same rows
/// give the same constants. Without rows: the constants of the data sheet.
Calibration calibrate(std::span<const PublishedRun> runs, const Constants& start = {});

/// Scores each row with constants that were fitted to the other models of its set and precision; a set of one model
/// has nothing to be fitted to and keeps the data sheet's.
std::vector<ScoredRun> score_leaving_model_out(std::span<const PublishedRun> runs, const Constants& start = {});

}  // namespace trireme::plan
