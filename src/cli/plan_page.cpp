// The page of `trireme plan`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "cli/plan_report.h"
#include "observe/format.h"
#include "observe/page.h"
#include "plan/flops.h"

namespace trireme::cli {
namespace {

using observe::Page;
using observe::percent;
using observe::short_bytes;
using observe::short_duration;
using observe::short_number;
using observe::thousands;

std::string bytes(double value) { return short_bytes(static_cast<int64_t>(std::llround(value))); }

/// Three digits, also of what is short.
std::string span(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 1000) return fmt::format("{:.3g} s", seconds);
  return short_duration(seconds);
}

/// Parameters and tokens, as papers write them.
std::string count(double value) {
  if (value >= 1e12) return fmt::format("{:.4g} T", value / 1e12);
  if (value >= 1e9) return fmt::format("{:.4g} B", value / 1e9);
  return fmt::format("{:.4g} M", value / 1e6);
}

/// `share` of 24 marks.
std::string bar(double share) {
  const int marks = static_cast<int>(std::lround(24 * std::min(std::max(share, 0.0), 1.0)));
  return std::string(static_cast<size_t>(marks), '#');
}

void add_job(Page& page, const PlanReport& report) {
  const plan::Job& job = report.job;
  const describe::WorkParameters counts = describe::count_work_parameters(job.shape);
  const std::string active =
      job.shape.has_experts() ? fmt::format(", {} of them a token", count(static_cast<double>(counts.active))) : "";
  page.section("Model", "{}, {} parameters{}", job.shape.name, count(static_cast<double>(counts.total)), active);
  page.section("Hardware", "{} x {}: {} TFLOP/s bf16, {} GiB, {} GB/s; {} GB/s among {}, {} GB/s beyond",
               thousands(job.gpus), job.accelerator.name, job.accelerator.bf16_tflops, job.accelerator.memory_gib,
               job.accelerator.memory_gbs, job.accelerator.scale_up_gbs, job.accelerator.scale_up_domain,
               job.accelerator.scale_out_gbs);
  page.section("Batch", "{} sequences x {} tokens = {} tokens a step, {}", thousands(job.global_batch),
               thousands(job.seq_len), thousands(job.tokens_per_step()), name_of(job.precision));
  for (const std::string& text : report.assumed) page.line("{}", text);
  page.section("Layout", "{}", to_text(report.layout));
  const int64_t batches = micro_batches(job, report.layout);
  page.line("{} micro-batch{} a step", thousands(batches), batches == 1 ? "" : "es");
  if (!report.missing.empty()) page.line("not in `trireme train` yet: {}", fmt::join(report.missing, ", "));
}

void add_memory(Page& page, const PlanReport& report) {
  const plan::RankMemory& rank = report.memory.most();
  page.section("Memory", "{}: {} of {} ({})", name_of(report.memory.verdict), bytes(rank.bytes),
               bytes(report.memory.capacity), percent(rank.bytes / report.memory.capacity));
  if (report.layout.pipeline > 1) page.line("on pipeline rank {}, the fullest", rank.pipeline_rank);
  for (const plan::MemoryItem& item : rank.items) {
    page.line("  {:<22} {:>9}  {:<24}  {}", item.purpose, bytes(item.bytes), bar(item.bytes / report.memory.capacity),
              item.how);
  }
  page.line("below {:.0f} % fits, to {:.0f} % is tight (Fujii et al., arXiv:2411.06465)", 100 * plan::kFits,
            100 * plan::kTight);
  if (report.megatron)
    page.line("Megatron-LM's own estimate, without buffers and overhead: {} weights and optimizer, {} activations",
              bytes(report.megatron->weights_and_optimizer), bytes(report.megatron->activations));
  if (report.fits()) return;
  page.line("what breaks it: {}", report.memory.breaks);
  for (const plan::Remedy& remedy : report.remedies)
    page.line("  {} {}: {}, {} a step", name_of(remedy.verdict), "with " + remedy.change, bytes(remedy.bytes),
              span(remedy.seconds));
  if (report.remedies.empty()) page.line("no one or two changes of the layout make it fit");
}

void add_time(Page& page, const PlanReport& report) {
  const plan::Job& job = report.job;
  const auto flops = [&](plan::FlopConvention convention) {
    return plan::flops_per_token(job.shape, job.seq_len, convention);
  };
  page.section("Compute", "FLOPs a token, forward and backward: 6ND {:.4g}, PaLM {:.4g}, PaLM causal {:.4g}",
               flops(plan::FlopConvention::six_n), flops(plan::FlopConvention::palm),
               flops(plan::FlopConvention::palm_causal));
  const plan::StepTime& time = report.time;
  page.section("Step", "{}, {} tokens/s a GPU, MFU {}, HFU {}", span(time.seconds),
               short_number(time.tokens_per_second_gpu), percent(time.mfu), percent(time.hfu));
  page.line("MFU: PaLM's FLOPs, attention not halved, against the bf16 peak; HFU: as executed");
  for (size_t i = 0; i < plan::kTerms; ++i) {
    const double seconds = time.terms[i];
    if (seconds <= 0) continue;
    page.line("  {:<12} {:>9}  {:>6}  {}", name_of(static_cast<plan::Term>(i)), span(seconds),
              percent(seconds / time.seconds), bar(seconds / time.seconds));
  }
  if (report.layout.pipeline > 1)
    page.line("pipeline ranks wait {} of its time; (p - 1) / (v m) of ideal time = {}", percent(time.idle_share),
              percent(time.bubble_ideal));
  std::string limits;
  for (size_t i = 0; i < std::min<size_t>(report.what_if.size(), 4); ++i) {
    const plan::WhatIf& row = report.what_if[i];
    limits += fmt::format("{}{} -{}", limits.empty() ? "" : ", ", name_of(row.term), percent(row.saved));
  }
  page.section("Limits", "a step without it: {}", limits);
  const plan::Constants& c = report.job.constants;
  page.section("Constants", "matmul {:.3f} of peak, memory {}, links {}, {} us a kernel gap; --constant changes them",
               plan::matmul_rate(report.job) / plan::peak_rate(report.job), c.memory_share, c.link_share,
               c.kernel_gap_us);
}

/// The two terms that are not the model's own products and take most.
std::string losses(const plan::Candidate& candidate) {
  std::vector<std::pair<double, plan::Term>> terms;
  for (size_t i = 0; i < plan::kTerms; ++i) {
    const auto term = static_cast<plan::Term>(i);
    if (term != plan::Term::products && term != plan::Term::attention && candidate.terms[i] > 0)
      terms.emplace_back(candidate.terms[i] / candidate.seconds, term);
  }
  std::ranges::sort(terms, std::ranges::greater{});
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(terms.size(), 2); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", name_of(terms[i].second), percent(terms[i].first, 0));
  return text;
}

void add_search(Page& page, const PlanReport& report) {
  if (!report.search) return;
  const plan::SearchResult& found = *report.search;
  page.section("Search", "{} legal layouts, {} simulated", thousands(found.legal), thousands(found.simulated));
  for (const plan::Candidate& candidate : found.best)
    page.line("  {:>8}  {:>9}  {:<5}  {}; {}", span(candidate.seconds), bytes(candidate.bytes),
              name_of(candidate.verdict), to_text(candidate.layout), losses(candidate));
  if (report.faster)
    page.line("without what was kept, {} layout{} that fit{} are faster than the first", thousands(*report.faster),
              *report.faster == 1 ? "" : "s", *report.faster == 1 ? "s" : "");
}

void add_run(Page& page, const PlanReport& report) {
  if (report.failures) {
    const plan::Failures& f = *report.failures;
    page.section("Failures", "one in {}, {} to be back, {} a checkpoint", short_duration(f.mean_time_between_s),
                 short_duration(f.restart_s), short_duration(f.checkpoint_s));
    page.line("a checkpoint every {} of work (Daly, 2006; Young, 1974: {}) leaves {} of the time",
              short_duration(report.interval_s), short_duration(plan::young_interval_s(f)), percent(report.goodput));
    page.line("{}", f.shape == 1 ? "exponential lifetimes: tau / (M e^(R/M) (e^((tau+d)/M) - 1))"
                                 : fmt::format("Weibull lifetimes of shape {}, by simulation", f.shape));
    if (report.spare_machines)
      page.line("{} spare machine{} are enough for 99 % of the time", thousands(*report.spare_machines),
                *report.spare_machines == 1 ? "" : "s");
  }
  if (!report.campaign) return;
  const plan::Campaign& run = *report.campaign;
  page.section("Run", "{} tokens ({:.1f} a parameter), {:.3g} FLOPs (6ND), {} steps", count(run.tokens),
               run.tokens_per_parameter, run.flops, thousands(static_cast<int64_t>(run.steps)));
  page.line("{:.1f} days, {} GPU-hours", run.days, short_number(run.gpu_hours));
  const auto active = static_cast<double>(describe::count_work_parameters(report.job.shape).active);
  const plan::ScalingLaw law = plan::chinchilla(active, run.tokens);
  page.line("Chinchilla (arXiv:2203.15556, eq. 10): loss {:.3f}; its best for these FLOPs: {} parameters, {} tokens",
            law.loss, count(law.best_parameters), count(law.best_tokens));
  if (run.usd > 0)
    page.line("{} USD at {} a GPU-hour{}{}", thousands(std::llround(run.usd)), report.prices.usd_per_gpu_hour,
              report.job.accelerator.price_note.empty() ? "" : ": ", report.job.accelerator.price_note);
  if (run.mwh > 0)
    page.line(
        "{:.4g} MWh at {} W an accelerator x {} for the rest{}", run.mwh, report.prices.watts, report.prices.overhead,
        run.tonnes_co2 > 0 ? fmt::format(", {:.4g} t CO2 at {} g/kWh", run.tonnes_co2, report.prices.grams_co2_per_kwh)
                           : "");
}

}  // namespace

std::string to_page(const PlanReport& report) {
  Page page;
  add_job(page, report);
  add_memory(page, report);
  add_time(page, report);
  add_search(page, report);
  add_run(page, report);
  return page.take();
}

}  // namespace trireme::cli
