// `trireme bench step` and `trireme bench memory`: the real step of a run, with one worker; what it takes in time, and
// what it holds, by purpose, beside what the start-up report foretells.
#include <fmt/format.h>

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "config/config.h"
#include "memory/caching_allocator.h"
#include "observe/format.h"
#include "observe/memory_estimate.h"
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

void print_heading(const Options& options, const train::StepBench& bench) {
  fmt::print("{}, one worker: {} steps after {} of warm-up, {} tokens a step{}\n\n", options.config,
             bench.step_s.size(), options.bench.warmup_steps, observe::thousands(bench.tokens),
             bench.random_tokens ? "; random tokens, since data.path is not prepared" : "");
}

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
  print_heading(options, bench);
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

struct Row {
  std::string purpose;
  int64_t foretold = 0, measured = 0;
};

// Of each purpose that is foretold or was measured. What the report adds to activations or the loss in lines of its own
// belongs to no purpose of the allocator; it is "other" there.
std::vector<Row> rows_of(const std::vector<observe::MemoryItem>& items, const memory::PurposeBytes& measured) {
  std::map<std::string, int64_t> foretold;
  for (const observe::MemoryItem& item : items) foretold[item.purpose] += item.bytes;
  std::vector<Row> rows;
  for (int i = 0; i < memory::kPurposes; ++i) {
    const auto purpose = static_cast<memory::Purpose>(i);
    Row row{memory::name_of(purpose), 0, memory::of(measured, purpose)};
    if (const auto found = foretold.find(row.purpose); found != foretold.end()) {
      row.foretold = found->second;
      foretold.erase(found);
    }
    if (purpose == memory::Purpose::other)
      for (const auto& [name, bytes] : foretold) row.foretold += bytes;
    if (row.foretold > 0 || row.measured > 0) rows.push_back(std::move(row));
  }
  return rows;
}

std::string difference(int64_t foretold, int64_t measured) {
  if (foretold == 0) return "";
  return fmt::format("{:+.1f}%", 100.0 * static_cast<double>(measured - foretold) / static_cast<double>(foretold));
}

int64_t foretold_of(const std::vector<Row>& rows) {
  int64_t bytes = 0;
  for (const Row& row : rows) bytes += row.foretold;
  return bytes;
}

void print_memory_json(const std::vector<Row>& rows, const train::StepBench& bench) {
  nlohmann::ordered_json json;
  json["random_tokens"] = bench.random_tokens;
  for (const Row& row : rows) json["foretold"][row.purpose] = row.foretold;
  for (const Row& row : rows) json["at_peak"][row.purpose] = row.measured;
  if (const int64_t host = memory::total(bench.tensors.host_at_peak); host > 0) {
    json["host_at_peak"] = host;
    json["peak_device"] = bench.tensors.peak_device_bytes;
  }
  json["peak_allocated"] = bench.tensors.peak_live_bytes;
  json["reserved"] = bench.tensors.system_bytes;
  json["kept_for_backward"] = bench.kept_activation_bytes;
  json["libraries"] = bench.beside.libraries;
  json["files"] = bench.beside.mapped;
  json["process_foretold"] = foretold_of(rows) + bench.beside.bytes();
  json["peak_resident_bytes"] = bench.peak_resident_bytes;
  json["page_faults_per_step"] = bench.page_faults;
  json["system_allocations_per_step"] = bench.system_allocations;
  fmt::print("{}\n", json.dump());
}

void print_memory(const Options& options, const std::vector<Row>& rows, const train::StepBench& bench) {
  print_heading(options, bench);
  const auto line = [](std::string_view purpose, std::string_view foretold, std::string_view measured,
                       std::string_view off) {
    fmt::print("{:<28}{:>12}{:>12}{:>9}\n", purpose, foretold, measured, off);
  };
  line("tensors, when they are most", "foretold", "measured", "");
  const int64_t foretold = foretold_of(rows), process = foretold + bench.beside.bytes();
  int64_t measured = 0;
  for (const Row& row : rows) {
    line("  " + row.purpose, row.foretold > 0 ? short_bytes(row.foretold) : "-", short_bytes(row.measured),
         difference(row.foretold, row.measured));
    measured += row.measured;
  }
  line("  in all", short_bytes(foretold), short_bytes(measured), difference(foretold, measured));
  const auto value = [&](const char* what, int64_t bytes) { line(what, "", short_bytes(bytes), ""); };
  if (const int64_t host = memory::total(bench.tensors.host_at_peak); host > 0) {
    line("  of it in the host's tier", "", short_bytes(host), "");
    line("  the device's tier, its peak", "", short_bytes(bench.tensors.peak_device_bytes), "");
  }
  fmt::print("\n");
  value("in blocks", bench.tensors.peak_live_bytes);
  value("blocks, also kept for reuse", bench.tensors.system_bytes);
  value("activations after forward", bench.kept_activation_bytes);
  value("libraries, before the steps", bench.beside.libraries);
  value("files: code and data", bench.beside.mapped);
  line("process, resident at most", short_bytes(process), short_bytes(bench.peak_resident_bytes),
       difference(process, bench.peak_resident_bytes));
  fmt::print("\n{:.1f} page faults and {:.2f} allocations of the system a step\n", bench.page_faults,
             bench.system_allocations);
}

// What both have.
void add_options(CLI::App& command, Options& options) {
  command.add_option("config", options.config, "The run's TOML file; run.dir is left alone")->required();
  command.add_option("--steps", options.bench.steps, "Steps that are measured")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  command.add_option("--set", options.overrides, "Replace an option of the file: section.key=value (may be repeated)")
      ->allow_extra_args(false);
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("step", "The training step of a run: time, memory, page faults");
  add_options(*command, *options);
  command->add_option("--warmup-steps", options->bench.warmup_steps, "Steps before them")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}))
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object with every step's time");
  command->footer("Example:\n  trireme bench step configs/sotu.toml --steps 50");
  command->callback([options] {
    const train::StepBench bench =
        train::bench_step(config::load_config(options->config, options->overrides), options->bench);
    options->json ? print_json(bench) : print_page(*options, bench);
  });
}

void add_bench_memory(CLI::App& bench) {
  const auto options = std::make_shared<Options>();
  options->bench.steps = 3;  // they are all alike
  CLI::App* command =
      bench.add_subcommand("memory", "The memory of a run's step by purpose, beside what is foretold of it");
  add_options(*command, *options);
  command->add_flag("--json", options->json, "One JSON object, in bytes");
  command->footer("Example:\n  trireme bench memory configs/sotu.toml --set train.recompute=full");
  command->callback([options] {
    config::Config config = config::load_config(options->config, options->overrides);
    if (!config.memory.caching_allocator)
      throw_input("memory.caching_allocator = false: it is the allocator that counts; true works");
    const train::StepBench measured = train::bench_step(config, options->bench);
    config::resolve_world(config, 1);
    const std::vector<Row> rows =
        rows_of(observe::estimate_memory(config, at::get_num_threads()), measured.tensors.at_peak);
    options->json ? print_memory_json(rows, measured) : print_memory(*options, rows, measured);
  });
}

}  // namespace trireme::cli
