// The file of `trireme plan --timeline`.
#pragma once

#include <string>

#include "cli/plan_report.h"

namespace trireme::cli {

/// One step, pass by pass: FILE.json for Perfetto and chrome://tracing, FILE.svg as a drawing. No other name gets here
/// (check_plan_options).
void write_timeline(const std::string& file, const PlanReport& report);

}  // namespace trireme::cli
