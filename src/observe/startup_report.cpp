#include "observe/startup_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "config/batch_ramp.h"
#include "describe/model_shape.h"
#include "observe/format.h"
#include "observe/page.h"

namespace trireme::observe {
namespace {

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", thousands(count), noun, count == 1 ? "" : "s");
}

void add_machine(Page& page, const StartupReport& report) {
  if (!report.version.empty()) {
    page.section("Trireme", "{}{}", report.version, report.torch.empty() ? "" : ", LibTorch " + report.torch);
  }
  std::string machine = report.host;
  const auto append = [&machine](const std::string& text) { machine += (machine.empty() ? "" : ", ") + text; };
  if (report.cores > 0) append(counted(report.cores, "core"));
  if (report.memory_bytes > 0) append(short_bytes(report.memory_bytes) + " memory");
  if (!report.instruction_set.empty()) append(report.instruction_set + " kernels");
  if (!machine.empty()) page.section("Machine", "{}", machine);
  std::string workers = counted(report.workers, "worker");
  if (report.threads > 0)
    workers += fmt::format(" with {}{}", counted(report.threads, "thread"), report.workers > 1 ? " each" : "");
  page.section("Workers", "{}", workers);
  for (size_t at = 0; at < report.mesh.size();) {
    const size_t end = std::min(report.mesh.find('\n', at), report.mesh.size());
    page.line("  {}", std::string_view(report.mesh).substr(at, end - at));
    at = end + 1;
  }
  if (report.matmul_flops_per_second > 0) {
    page.line("matrix products in {}: {}FLOP/s{}{}", config::name_of(report.config.train.precision),
              short_number(report.matmul_flops_per_second),
              report.matmul_size > 0 ? fmt::format(" at {0} x {0} x {0}", report.matmul_size) : "",
              report.workers > 1 ? ", all workers at once" : "");
  }
}

void add_model(Page& page, const StartupReport& report) {
  const config::ModelConfig& model = report.config.model;
  const describe::ParameterCounts counts = describe::count_parameters(model);
  const int64_t total = counts.total();
  page.section("Model", "{}{}, {} parameters", model.architecture,
               model.preset.empty() ? "" : fmt::format(" (preset {})", model.preset), thousands(total));
  page.line("{}, hidden {}, {} ({} for keys and values) of {}, feed-forward {}", counted(model.layers, "layer"),
            thousands(model.hidden), counted(model.heads, "head"), model.kv_heads, model.head_dim,
            thousands(model.ffn));
  page.line("vocabulary {}, sequences of at most {} tokens", thousands(model.vocab), thousands(model.max_seq_len));
  const std::array<std::pair<std::string_view, int64_t>, 7> roles = {{{"embedding", counts.embedding},
                                                                      {"positions", counts.positions},
                                                                      {"attention", counts.attention},
                                                                      {"feed-forward", counts.feed_forward},
                                                                      {"norms", counts.norm},
                                                                      {"other", counts.other},
                                                                      {"head", counts.head}}};
  const size_t width = thousands(total).size();
  for (const auto& [role, count] : roles) {
    const bool tied = model.tied && role == "head";
    if (count == 0 && !tied) continue;  // a role that the architecture does not have, or does not tell
    page.line("  {:<13} {:>{}}  {:>6}{}", role, thousands(count), width,
              percent(total > 0 ? static_cast<double>(count) / static_cast<double>(total) : 0.0),
              tied ? "  tied: it is the embedding's weight" : "");
  }
}

void add_step(Page& page, const StartupReport& report) {
  const config::TrainConfig& train = report.config.train;
  const int64_t data_ranks = report.config.parallel.data;
  page.section("Batch", "{}", batch_arithmetic(train.micro_batch_size, data_ranks, report.accumulation, train.seq_len));
  if (const config::BatchRampConfig& ramp = report.config.batch_ramp; ramp.start > 0)
    page.line("from {} on, {} more at a time until {} are seen", counted(ramp.start, "sequence"),
              thousands(ramp.increment), thousands(ramp.samples));
  const double flops = describe::model_flops_per_token(report.config.model, train.seq_len);
  const double step_tokens = static_cast<double>(train.micro_batch_size * data_ranks * report.accumulation) *
                             static_cast<double>(train.seq_len);
  page.section("Compute", "{}FLOP a token, {}FLOP a step: 6 x parameters that multiply + 12 x layers x heads x head",
               short_number(flops), short_number(flops * step_tokens));
  page.line("dimension x sequence (PaLM, appendix B: forward and backward, no causal halving, no");
  page.line("recomputation). MFU = these FLOPs a second / the rate of matrix products{}",
            report.matmul_flops_per_second > 0 ? " above" : ", not measured here");
  page.section("Precision", "{}, gradients {}, recompute {}", config::name_of(train.precision), train.gradient_dtype,
               config::name_of(train.recompute));
  if (train.precision == config::Precision::fp16)
    page.line("loss scaled by {} at first", report.config.loss_scale.initial);
  const config::ParallelConfig& parallel = report.config.parallel;
  std::vector<std::string> rounded;
  if (parallel.quantize_weights != config::Quantize::none)
    rounded.push_back(fmt::format("weights in {}", config::name_of(parallel.quantize_weights)));
  if (parallel.quantize_gradients != config::Quantize::none)
    rounded.push_back(fmt::format("gradients in {}{}", config::name_of(parallel.quantize_gradients),
                                  parallel.quantize_error_feedback ? " with error feedback" : ""));
  if (rounded.empty()) return;
  if (parallel.shard_size > 1)
    page.line("between workers {}, blocks of {}", fmt::join(rounded, ", "), parallel.quantize_block);
  else
    page.line("nothing travels between workers that divide a copy, so nothing is rounded for it");
}

void add_memory(Page& page, const StartupReport& report) {
  const std::vector<MemoryItem> items = estimate_memory(report.config, report.threads);
  const int64_t own = total_bytes(items) + report.libraries_bytes, total = own + report.mapped_bytes;
  const int64_t all = own * report.workers + report.mapped_bytes;
  page.section("Memory", "{} {} a worker{}{}", is_lower_bound(report.config.model) ? "more than" : "about",
               short_bytes(total), report.workers > 1 ? fmt::format(", {} in all", short_bytes(all)) : "",
               report.libraries_bytes > 0 ? "" : ", and what libraries and their scratch take");
  const auto line = [&page](std::string_view purpose, int64_t bytes, std::string_view how) {
    page.line("  {:<15} {:>9}  {}", purpose, short_bytes(bytes), how);
  };
  for (const MemoryItem& item : items) line(item.purpose, item.bytes, item.how);
  if (report.libraries_bytes > 0) line("libraries", report.libraries_bytes, "what they keep, as it is now");
  if (report.mapped_bytes > 0) line("files", report.mapped_bytes, "code and data as mapped now, which workers share");
  if (report.memory_bytes > 0 && all > report.memory_bytes) {
    page.line("more than this machine's {}: the run may be killed. Less is used by", short_bytes(report.memory_bytes));
    page.line("{}", ways_to_less_memory(report.config));
  }
}

std::string amount(int64_t documents, int64_t tokens, int64_t bytes) {
  std::string text = fmt::format("{}, {}", counted(documents, "document"), counted(tokens, "token"));
  if (bytes > 0) text += fmt::format(", {} of text", short_bytes(bytes));
  if (bytes > 0 && tokens > 0) {
    text += fmt::format(" ({:.2f} bytes a token)", static_cast<double>(bytes) / static_cast<double>(tokens));
  }
  return text;
}

/// The last step that this run will make.
int64_t last_step(const config::TrainConfig& train) {
  return train.stop_after > 0 ? std::min(train.stop_after, train.steps) : train.steps;
}

void add_data(Page& page, const StartupReport& report) {
  const config::Config& config = report.config;
  if (report.train_tokens > 0) {
    page.section("Data", "{}", config.data.path.string());
    page.line("{}", amount(report.train_documents, report.train_tokens, report.train_bytes));
    const int64_t seen = config::sequences_of(config, last_step(config.train)) * config.train.seq_len;
    // The first token of the stream is no label, see data/loader.h.
    const int64_t epoch = (report.train_tokens - 1) / config.train.seq_len * config.train.seq_len;
    page.line("the run sees {}{}", counted(seen, "token"),
              epoch > 0 ? fmt::format(" = {:.2f} epochs", static_cast<double>(seen) / static_cast<double>(epoch)) : "");
  }
  for (const HeldOutReport& held_out : report.held_out) {
    page.section("Held-out", "{}", config::to_text(held_out.set));
    page.line("{}", amount(held_out.documents, held_out.tokens, held_out.bytes));
  }
  for (const auto& [suite, questions] : report.choices)
    page.section("Questions", "{}, {}", config::to_text(suite), counted(questions, "question"));
}

void add_schedule(Page& page, const StartupReport& report) {
  const config::Config& config = report.config;
  const config::LrScheduleConfig& schedule = config.lr_schedule;
  const double peak = config.optimizer.lr;
  const int64_t decay = std::max<int64_t>(schedule.decay_steps, 0);
  const int64_t warmup = std::max<int64_t>(schedule.warmup_steps, 0);
  const int64_t plateau = std::max<int64_t>(schedule.steps - warmup - decay, 0);
  std::string rates;
  if (warmup > 0) rates += fmt::format("{} of warm-up, ", counted(warmup, "step"));
  const bool falls = schedule.name == config::LrScheduleName::inverse_sqrt;
  const bool constant = schedule.name == config::LrScheduleName::constant || decay == 0;
  if (plateau > 0 || constant) {
    rates += falls ? fmt::format("then as 1 / sqrt(step) from {:.2e}", peak)
                   : fmt::format("{} at {:.2e}", counted(constant ? plateau + decay : plateau, "step"), peak);
  }
  if (!constant) {
    rates += fmt::format("{}{} of {} decay from {:.2e} to {:.2e}", plateau > 0 ? ", " : "", counted(decay, "step"),
                         config::name_of(schedule.name), peak, peak * schedule.min_ratio);
  }
  page.section("Steps", "{}{}{}", counted(config.train.steps, "step"),
               last_step(config.train) < config.train.steps
                   ? fmt::format(", this run stops after step {}", thousands(config.train.stop_after))
                   : "",
               report.first_step > 0 ? fmt::format(", {} done", thousands(report.first_step)) : "");
  page.section("Rate", "{}", rates);
  const config::OptimizerConfig& optimizer = config.optimizer;
  page.section("Optimizer", "{}, beta {} and {}, eps {}, weight decay {}, {}", optimizer.name, optimizer.beta1,
               optimizer.beta2, optimizer.eps, optimizer.weight_decay,
               config.train.clip_grad_norm > 0 ? fmt::format("gradient norm clipped at {}", config.train.clip_grad_norm)
                                               : std::string("no clipping"));
}

std::string every(int64_t interval, std::string_view never) {
  if (interval <= 0) return std::string(never);
  return interval == 1 ? "every step" : fmt::format("every {} steps", thousands(interval));
}

void add_cadence(Page& page, const StartupReport& report) {
  const config::Config& config = report.config;
  page.section("Metrics", "{}", every(config.metrics.interval, "never"));
  int64_t tokens = 0;
  for (const HeldOutReport& held_out : report.held_out)
    tokens += config.eval.tokens > 0 ? std::min(config.eval.tokens, held_out.tokens) : held_out.tokens;
  int64_t questions = 0;
  for (const auto& suite : report.choices) questions += suite.questions;
  if (questions > 0) {
    page.section("Evaluation", "{}, over {} held-out tokens and {}", every(config.eval.interval, "never"),
                 thousands(tokens), counted(questions, "question"));
  } else if (tokens > 0) {
    page.section("Evaluation", "{}, over {} held-out tokens", every(config.eval.interval, "never"), thousands(tokens));
  }
  page.section(
      "Checkpoints", "{}, {}", every(config.checkpoint.interval, "after the last step"),
      config.checkpoint.keep > 0 ? fmt::format("the last {} kept", config.checkpoint.keep) : std::string("all kept"));
  page.section("Folder", "{}: metrics.jsonl, checkpoints/", config.run.dir.string());
  if (!report.resumed_from.empty()) {
    page.section(report.first_step > 0 ? "Resumed" : "Loaded", "from {}", report.resumed_from.string());
  }
}

}  // namespace

std::string batch_arithmetic(int64_t micro_batch_size, int64_t data_ranks, int64_t accumulation, int64_t seq_len) {
  const int64_t sequences = micro_batch_size * data_ranks * accumulation;
  return fmt::format("global batch {} = {} micro x {} x {} accumulation = {} a step", counted(sequences, "sequence"),
                     thousands(micro_batch_size), counted(data_ranks, "data rank"), thousands(accumulation),
                     counted(sequences * seq_len, "token"));
}

std::string to_text(const StartupReport& report) {
  Page page;
  add_machine(page, report);
  add_model(page, report);
  add_step(page, report);
  add_memory(page, report);
  add_data(page, report);
  add_schedule(page, report);
  add_cadence(page, report);
  return page.take();
}

}  // namespace trireme::observe
