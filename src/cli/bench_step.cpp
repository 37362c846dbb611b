// `trireme bench step`: the real step of a run, with one worker.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "config/config.h"
#include "observe/format.h"
#include "train/bench_step.h"

namespace trireme::cli {
namespace {

using observe::percent;
using observe::short_bytes;
using observe::short_number;

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  train::StepBenchOptions bench;
  bool json = false;
};

void print_json(const train::StepBench& bench) {
  nlohmann::ordered_json json;
  json["random_tokens"] = bench.random_tokens;
  json["tokens_per_step"] = bench.tokens;
  json["step_s"] = bench.step_s;
  json["median_s"] = bench.median_s();
  json["p95_s"] = bench.p95_s();
  json["tokens_per_second"] = bench.tokens_per_second();
  json["flops_per_token"] = bench.flops_per_token;
  json["matmul_flops_per_second"] = bench.matmul_flops_per_second;
  json["mfu"] = bench.mfu();
  json["page_faults_per_step"] = bench.page_faults;
  json["system_allocations_per_step"] = bench.system_allocations;
  json["peak_resident_bytes"] = bench.peak_resident_bytes;
  json["loss"] = bench.loss;
  fmt::print("{}\n", json.dump());
}

void print_page(const Options& options, const train::StepBench& bench) {
  fmt::print("{}, one worker: {} steps after {} of warm-up, {} tokens a step{}\n\n", options.config,
             bench.step_s.size(), options.bench.warmup_steps, observe::thousands(bench.tokens),
             bench.random_tokens ? "; random tokens, since data.path is not prepared" : "");
  const auto line = [](const char* what, const std::string& value) { fmt::print("{:<28}{}\n", what, value); };
  line("step, median", fmt::format("{:.1f} ms", bench.median_s() * 1e3));
  line("step, 95th percentile",
       fmt::format("{:.1f} ms, {:.2f} x the median", bench.p95_s() * 1e3, bench.p95_s() / bench.median_s()));
  line("tokens a second", short_number(bench.tokens_per_second()));
  line("MFU", fmt::format("{} of {}FLOP/s, a product of matrices", percent(bench.mfu()),
                          short_number(bench.matmul_flops_per_second)));
  line("page faults a step", fmt::format("{:.1f}", bench.page_faults));
  line("allocations of the system", fmt::format("{:.2f} a step", bench.system_allocations));
  line("peak memory", short_bytes(bench.peak_resident_bytes));
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("step", "The training step of a run: time, memory, page faults");
  command->add_option("config", options->config, "The run's TOML file; run.dir is left alone")->required();
  command->add_option("--steps", options->bench.steps, "Steps that are measured")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--warmup-steps", options->bench.warmup_steps, "Steps before them")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--set", options->overrides, "Replace an option of the file: section.key=value (may be repeated)")
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "One JSON object with every step's time");
  command->footer("Example:\n  trireme bench step configs/sotu.toml --steps 50");
  command->callback([options] {
    const train::StepBench bench =
        train::bench_step(config::load_config(options->config, options->overrides), options->bench);
    options->json ? print_json(bench) : print_page(*options, bench);
  });
}

}  // namespace trireme::cli
