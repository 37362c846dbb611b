// The JSON of `trireme plan`.
#include <nlohmann/json.hpp>

#include "cli/plan_report.h"
#include "plan/flops.h"

namespace trireme::cli {
namespace {

using nlohmann::json;

json terms_json(const plan::Terms& terms) {
  json result;
  for (size_t i = 0; i < plan::kTerms; ++i) result[std::string(name_of(static_cast<plan::Term>(i)))] = terms[i];
  return result;
}

json candidate_json(const plan::Candidate& candidate) {
  return {{"layout", to_json(candidate.layout)},
          {"step_time_s", candidate.seconds},
          {"memory_bytes", candidate.bytes},
          {"verdict", name_of(candidate.verdict)},
          {"time_s", terms_json(candidate.terms)}};
}

json candidates(const std::vector<plan::Candidate>& list) {
  json result = json::array();
  for (const plan::Candidate& candidate : list) result.push_back(candidate_json(candidate));
  return result;
}

/// What to look at first: the memory that breaks it, then the terms that cost the step most.
json limits(const PlanReport& report) {
  json list = json::array();
  if (!report.fits())
    list.push_back({{"kind", "memory"}, {"term", report.memory.breaks}, {"bytes", report.memory.most().bytes}});
  for (const plan::WhatIf& row : report.what_if)
    list.push_back({{"kind", "time"}, {"term", name_of(row.term)}, {"saved_share", row.saved}});
  return list;
}

json flops(const plan::Job& job) {
  json result;
  for (const auto convention :
       {plan::FlopConvention::six_n, plan::FlopConvention::palm, plan::FlopConvention::palm_causal})
    result[std::string(name_of(convention))] = plan::flops_per_token(job.shape, job.seq_len, convention);
  return result;
}

}  // namespace

json to_json(const plan::Layout& layout) {
  return {{"tensor", layout.tensor},
          {"context", layout.context},
          {"pipeline", layout.pipeline},
          {"virtual_stages", layout.virtual_stages},
          {"data", layout.data},
          {"replicas", layout.replicas},
          {"replicas_innermost", layout.replicas > 1 && layout.replicas_innermost},
          {"expert", layout.expert},
          {"micro_batch", layout.micro_batch},
          {"sequence_parallel", layout.tensor > 1 && layout.sequence_parallel},
          {"recompute", config::name_of(layout.recompute)},
          {"schedule", name_of(layout.schedule)},
          {"shard", name_of(layout.shard)}};
}

json constants_json(const plan::Job& job) {
  const plan::Constants& c = job.constants;
  return {{"matmul_share", plan::matmul_rate(job) / plan::peak_rate(job)},
          {"memory_share", c.memory_share},
          {"link_share", c.link_share},
          {"kernel_gap_us", c.kernel_gap_us}};
}

json to_json(const PlanReport& report) {
  const plan::Job& job = report.job;
  json result = {{"fits", report.fits()},
                 {"verdict", name_of(report.memory.verdict)},
                 {"model", job.shape.name},
                 {"hardware", job.accelerator.name},
                 {"gpus", job.gpus},
                 {"global_batch", job.global_batch},
                 {"seq_len", job.seq_len},
                 {"precision", name_of(job.precision)},
                 {"layout", to_json(report.layout)},
                 {"micro_batches", micro_batches(job, report.layout)},
                 {"step_time_s", report.time.seconds},
                 {"tokens_per_second_gpu", report.time.tokens_per_second_gpu},
                 {"mfu", report.time.mfu},
                 {"hfu", report.time.hfu},
                 {"flops_per_token", flops(job)},
                 {"memory_bytes", report.memory.most().bytes},
                 {"memory_capacity_bytes", report.memory.capacity},
                 {"limits", limits(report)},
                 {"assumed", report.assumed},
                 {"missing_in_trainer", report.missing},
                 {"goodput", report.goodput}};
  for (const plan::MemoryItem& item : report.memory.most().items)
    result["memory"].push_back({{"purpose", item.purpose}, {"bytes", item.bytes}, {"how", item.how}});
  result["time_s"] = terms_json(report.time.terms);
  result["constants"] = constants_json(job);
  result["remedies"] = json::array();
  for (const plan::Remedy& remedy : report.remedies)
    result["remedies"].push_back({{"change", remedy.change},
                                  {"layout", to_json(remedy.layout)},
                                  {"step_time_s", remedy.seconds},
                                  {"memory_bytes", remedy.bytes},
                                  {"verdict", name_of(remedy.verdict)}});
  if (report.search) {
    result["search"] = {{"legal", report.search->legal},
                        {"simulated", report.search->simulated},
                        {"best", candidates(report.search->best)},
                        {"pareto", candidates(report.search->pareto)}};
  }
  if (report.megatron)
    result["megatron_memory_bytes"] = {{"weights_and_optimizer", report.megatron->weights_and_optimizer},
                                       {"activations", report.megatron->activations}};
  if (report.spare_machines) result["spare_machines"] = *report.spare_machines;
  if (report.faster) result["faster_layouts"] = *report.faster;
  if (report.failures) {
    result["failures"] = {{"mean_time_between_s", report.failures->mean_time_between_s},
                          {"restart_s", report.failures->restart_s},
                          {"checkpoint_s", report.failures->checkpoint_s},
                          {"interval_s", report.interval_s}};
  }
  if (report.campaign) {
    const plan::Campaign& run = *report.campaign;
    result["run"] = {{"tokens", run.tokens}, {"flops", run.flops},          {"steps", run.steps},
                     {"days", run.days},     {"gpu_hours", run.gpu_hours},  {"usd", run.usd},
                     {"mwh", run.mwh},       {"tonnes_co2", run.tonnes_co2}};
  }
  return result;
}

}  // namespace trireme::cli
