#include "cli/plan_rows.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/plan_report.h"
#include "plan/calibration.h"
#include "plan/memory.h"
#include "plan/step_time.h"

namespace trireme::cli {
namespace {

using nlohmann::json;
using plan::PublishedRun;
using plan::ScoredRun;

std::string stack_of(const PublishedRun& run) {
  return fmt::format("{} {} {}", run.set, run.job.accelerator.name, name_of(run.job.precision));
}

/// Runs that share constants: a source, an accelerator, a precision.
std::map<std::string, std::vector<PublishedRun>> stacks_of(const std::vector<PublishedRun>& runs) {
  std::map<std::string, std::vector<PublishedRun>> stacks;
  for (const PublishedRun& run : runs) {
    if (run.is_timed()) stacks[stack_of(run)].push_back(run);
  }
  return stacks;
}

json to_json(const plan::Score& score) {
  json result = {{"mape", score.mean}, {"max", score.most}, {"bias", score.bias}};
  result["spearman"] = std::isnan(score.spearman) ? json() : json(score.spearman);
  return result;
}

json memory_rows(const std::vector<PublishedRun>& runs) {
  json rows = json::array();
  for (const PublishedRun& run : runs) {
    if (!run.skipped.empty() || run.memory_gib <= 0) continue;
    const double bytes = plan::most_bytes(run.job, run.layout), gib = bytes / plan::kGiB;
    rows.push_back({{"id", run.id},
                    {"predicted_gib", gib},
                    {"measured_gib", run.memory_gib},
                    {"error", gib / run.memory_gib - 1},
                    {"verdict", name_of(plan::verdict_on(bytes, run.job))}});
  }
  return rows;
}

}  // namespace

void score_rows(const std::string& file, const RowsOptions& options, bool as_json) {
  if (options.fit && options.leave_model_out)
    throw_input("--fit scores the rows that it was fitted to, and --leave-model-out does not: give one of them");
  const std::vector<PublishedRun> runs = plan::read_published_runs(file);
  json result = {{"rows", json::array()}, {"skipped", json::array()}, {"stacks", json::object()}};
  double sum = 0;
  size_t count = 0;
  for (const auto& [name, stack] : stacks_of(runs)) {
    plan::Constants constants = options.constants;
    if (options.fit) constants = plan::calibrate(stack, constants).constants;
    const std::vector<ScoredRun> scored =
        options.leave_model_out ? plan::score_leaving_model_out(stack, constants) : plan::score(stack, constants);
    const plan::Score score = plan::summarize(scored);
    json entry = to_json(score);
    entry["rows"] = scored.size();
    entry["best_constant_mfu_mape"] = plan::best_constant_mfu_error(stack);
    entry["fitted_to_these_rows"] = options.fit;
    if (!options.leave_model_out) {
      plan::Job job = stack.front().job;
      job.constants = constants;
      entry["constants"] = constants_json(job);
    }
    for (const ScoredRun& row : scored) {
      sum += std::abs(row.error);
      ++count;
      result["rows"].push_back({{"id", row.run->id},
                                {"predicted_step_s", row.predicted_s},
                                {"measured_step_s", row.run->step_s},
                                {"error", row.error}});
      if (!as_json)
        fmt::print("{:<56} {:>9.3f} s measured {:>9.3f} s planned {:>+7.1f} %\n", row.run->id, row.run->step_s,
                   row.predicted_s, 100 * row.error);
    }
    result["stacks"][name] = entry;
  }
  for (const PublishedRun& run : runs) {
    if (!run.skipped.empty()) result["skipped"].push_back({{"id", run.id}, {"why", run.skipped}});
    if (run.skipped.empty() && run.step_s <= 0 && run.memory_gib <= 0)
      result["skipped"].push_back({{"id", run.id}, {"why", "no time and no memory is stated"}});
  }
  result["memory"] = memory_rows(runs);
  result["mape"] = count > 0 ? json(sum / static_cast<double>(count)) : json();
  if (as_json) {
    fmt::print("{}\n", result.dump());
    return;
  }
  for (const auto& row : result["memory"])
    fmt::print("{:<56} {:>7.1f} GiB measured {:>7.1f} GiB planned {:>+7.1f} %  {}\n", row["id"].get<std::string>(),
               row["measured_gib"].get<double>(), row["predicted_gib"].get<double>(), 100 * row["error"].get<double>(),
               row["verdict"].get<std::string>());
  fmt::print("\n{:<36} {:>5} {:>8} {:>8} {:>8} {:>9} {:>14}\n", "stack", "rows", "mean", "most", "bias", "spearman",
             "one MFU for all");
  for (const auto& [name, entry] : result["stacks"].items()) {
    fmt::print("{:<36} {:>5} {:>6.1f} % {:>6.1f} % {:>+6.1f} % {:>9} {:>12.1f} %\n", name, entry["rows"].get<size_t>(),
               100 * entry["mape"].get<double>(), 100 * entry["max"].get<double>(), 100 * entry["bias"].get<double>(),
               entry["spearman"].is_null() ? "-" : fmt::format("{:.2f}", entry["spearman"].get<double>()),
               100 * entry["best_constant_mfu_mape"].get<double>());
    if (entry.contains("constants"))
      fmt::print("{:<36}       matmul_share {:.3f} memory_share {:.3f} link_share {:.3f} kernel_gap_us {:.2f}\n", "",
                 entry["constants"]["matmul_share"].get<double>(), entry["constants"]["memory_share"].get<double>(),
                 entry["constants"]["link_share"].get<double>(), entry["constants"]["kernel_gap_us"].get<double>());
  }
  fmt::print("skipped: {} rows\n", result["skipped"].size());
}

}  // namespace trireme::cli
