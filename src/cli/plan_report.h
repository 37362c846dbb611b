// What `trireme plan` found, and how it is shown.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/campaign.h"
#include "plan/explain.h"
#include "plan/megatron_memory.h"
#include "plan/memory.h"
#include "plan/reliability.h"
#include "plan/search.h"
#include "plan/step_time.h"

namespace trireme::cli {

struct PlanReport {
  plan::Job job;
  plan::Layout layout;
  plan::MemoryPlan memory;
  plan::StepTime time;
  std::vector<plan::WhatIf> what_if;
  std::optional<plan::MegatronMemory> megatron;  ///< where it was asked for
  std::vector<plan::Remedy> remedies;            ///< where it does not fit
  std::optional<plan::SearchResult> search;      ///< where layouts were searched
  std::optional<int64_t> faster;                 ///< where axes were kept: layouts that fit and are faster without that
  std::vector<std::string> missing;              ///< options that the trainer does not have yet
  std::vector<std::string> assumed;              ///< defaults that were taken, in words
  std::optional<plan::Failures> failures;
  double interval_s = 0;  ///< between checkpoints, with failures
  double goodput = 1;
  std::optional<int64_t> spare_machines;  ///< where the time of repair was given
  std::optional<plan::Campaign> campaign;
  plan::Prices prices;

  bool fits() const { return memory.verdict != plan::Verdict::does_not_fit; }
};

/// A page for a person.
std::string to_page(const PlanReport& report);
/// For programs: fits, verdict, layout, step_time_s, memory_bytes, limits, and what the page says besides.
nlohmann::json to_json(const PlanReport& report);
nlohmann::json to_json(const plan::Layout& layout);
/// Two plans beside each other.
std::string to_comparison(const std::string& name_a, const PlanReport& a, const std::string& name_b,
                          const PlanReport& b);
nlohmann::json comparison_json(const PlanReport& a, const PlanReport& b);
/// How one number of a plan comes about.
std::string to_page(const plan::Explanation& explanation, const PlanReport& report);
nlohmann::json to_json(const plan::Explanation& explanation);
/// The four that may be fitted.
nlohmann::json constants_json(const plan::Job& job);

}  // namespace trireme::cli
