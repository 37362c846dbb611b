#include "plan/step_time.h"

#include <algorithm>

#include "base/error.h"
#include "plan/flops.h"
#include "plan/stage_times.h"

namespace trireme::plan {
namespace {

// The products of a model reach less than the best shape of a benchmark; what was measured nowhere is taken to reach
// the share of its peak that most accelerators do.
constexpr double kTypicalShare = 0.8, kTypicalBest = 0.8;

}  // namespace

std::string_view name_of(Term term) {
  constexpr std::array<std::string_view, kTerms> names = {"products",  "attention", "passes",    "gaps",
                                                          "recompute", "tensor",    "context",   "expert",
                                                          "gather",    "bubble",    "gradients", "optimizer"};
  return names[index(term)];
}

double peak_rate(const Job& job) {
  const Accelerator& a = job.accelerator;
  if (job.precision == Precision::fp8) {
    if (a.fp8_tflops <= 0) throw_input("{} has no fp8 products; bf16 works", a.name);
    return a.fp8_tflops * 1e12;
  }
  return a.bf16_tflops * 1e12 / (job.precision == Precision::fp32 ? 2 : 1);
}

double matmul_rate(const Job& job) {
  const Accelerator& a = job.accelerator;
  double share = job.constants.matmul_share;
  if (share <= 0) {
    const bool low = job.precision == Precision::fp8;
    const double best = low ? a.matmul_fp8_tflops : a.matmul_bf16_tflops;
    const double peak = low ? a.fp8_tflops : a.bf16_tflops;
    share = kTypicalShare * (best > 0 ? best / peak : kTypicalBest);
  }
  return share * peak_rate(job);
}

StepTime step_time(const Job& job, const Layout& layout, const StepOptions& options) {
  const Stages stages = make_stages(job, layout, options);
  const int64_t batches = micro_batches(job, layout);
  const auto count = static_cast<double>(batches);

  Terms per_batch{};
  for (int64_t rank = 0; rank < layout.pipeline; ++rank) {
    const Terms terms = rank_terms(layout, stages, rank);
    if (rank == 0 || sum(terms) > sum(per_batch)) per_batch = terms;
  }
  StepTime result;
  add(result.terms, per_batch, count);
  for (const Passes& stage : stages.passes) at(result.terms, Term::gather) += stage.first_gather;  // one has it
  const double work = sum(result.terms);

  double pipeline = work;
  if (layout.pipeline > 1 && !options.off[index(Term::bubble)]) {
    if (options.simulate) {
      const auto table =
          describe::make_pipeline_table(layout.schedule, layout.pipeline, layout.virtual_stages, batches);
      const describe::PipelineResult played = describe::simulate(table, stages.times);
      pipeline = played.seconds;
      result.idle_share = played.idle_share;
    } else {
      pipeline = describe::least_seconds(stages.times, layout.pipeline, batches);
    }
  }
  at(result.terms, Term::bubble) = std::max(0.0, pipeline - work);

  const Ending ending = make_ending(job, layout, options, stages);
  at(result.terms, Term::gradients) = ending.exchange;
  at(result.terms, Term::optimizer) = ending.update;
  result.seconds = sum(result.terms);

  const auto tokens = static_cast<double>(job.tokens_per_step());
  const double machine = static_cast<double>(job.gpus) * job.accelerator.bf16_tflops * 1e12;
  result.bubble_ideal = static_cast<double>(layout.pipeline - 1) / (static_cast<double>(layout.virtual_stages) * count);
  result.model_flops = flops_per_token(job.shape, job.seq_len, FlopConvention::palm) * tokens;
  result.mfu = result.model_flops / (result.seconds * machine);
  result.hfu = executed_flops(job, layout) / (result.seconds * machine);
  result.tokens_per_second_gpu = tokens / result.seconds / static_cast<double>(job.gpus);
  return result;
}

std::vector<WhatIf> what_if(const Job& job, const Layout& layout) {
  const double whole = step_time(job, layout).seconds;
  std::vector<WhatIf> result;
  for (size_t i = 0; i < kTerms; ++i) {
    StepOptions options;
    options.off[i] = true;
    const double seconds = step_time(job, layout, options).seconds;
    if (seconds < whole) result.push_back({static_cast<Term>(i), seconds, 1 - seconds / whole});
  }
  std::ranges::sort(result, std::ranges::greater{}, &WhatIf::saved);
  return result;
}

}  // namespace trireme::plan
