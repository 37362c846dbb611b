// The words of `trireme plan`: what they are, and what is wrong with them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/plan_rows.h"
#include "plan/campaign.h"
#include "plan/reliability.h"
#include "plan/search.h"

namespace CLI {
class App;
}

namespace trireme::cli {

struct PlanOptions {
  std::string config, model, hardware;
  std::vector<std::string> overrides, hardware_values, constants;
  std::optional<int64_t> gpus, seq_len, global_batch;
  std::optional<std::string> precision, recompute, shard;
  plan::SearchSpace space;
  std::optional<double> repair_hours;
  bool megatron = false;
  bool search = false, json_output = false, list = false;
  size_t top = 5;
  std::string write, rows, calibrate, timeline;
  std::string term, explained_config;  ///< of plan explain
  std::string left, right;             ///< of plan compare: config files or models
  RowsOptions rows_options;
  plan::Budget budget;
  std::optional<double> price, power, gpu_mtbf_hours;
  plan::Prices prices;
  plan::Failures failures;

  bool narrows() const {
    return space.tensor || space.context || space.pipeline || space.virtual_stages || space.expert ||
           space.micro_batch || recompute || shard;
  }
};

/// Adds all options to the command; `options` outlives it.
void add_plan_options(CLI::App& command, PlanOptions& options);

/// Throws one InputError with every fault: what is missing, what does not go together, what nothing would read.
void check_plan_options(const CLI::App& command, const PlanOptions& options);

/// Throws one InputError with every one of `names` that was given: they say nothing to `what`.
void refuse_beside(const CLI::App& command, std::initializer_list<const char*> names, const char* what);

/// "key=number" each. Throws one InputError with every fault.
void set_constants(plan::Constants& constants, const std::vector<std::string>& texts);

/// What is kept of the layout.
plan::SearchSpace space_of(const PlanOptions& options);

}  // namespace trireme::cli
