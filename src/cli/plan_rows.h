// `trireme plan --rows`: predictions beside measured runs.
#pragma once

#include <string>

#include "plan/job.h"

namespace trireme::cli {

struct RowsOptions {
  bool fit = false;              ///< constants are fitted to the rows that are scored: says how well the model can fit
  bool leave_model_out = false;  ///< constants are fitted to other models than the one that is scored
  plan::Constants constants;     ///< where they start, and what is used without a fit
};

/// Reads the table, and prints its rows and the errors of each source; JSON: {rows, skipped, mape, ...} on one line.
void score_rows(const std::string& file, const RowsOptions& options, bool as_json);

}  // namespace trireme::cli
