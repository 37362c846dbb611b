// `trireme bench`: how fast this machine is at what training does most.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/host.h"
#include "base/machine.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "observe/format.h"
#include "observe/matmul_rate.h"

namespace trireme::cli {
namespace {

using observe::short_bytes;
using observe::short_number;
using observe::thousands;

struct Matmul {
  std::vector<int64_t> sizes = {512, 1024, 2048};
  std::vector<std::string> dtypes = {"bf16", "fp32", "fp64"};
  int threads = 0;
  double seconds = 0.3;
  std::string log;
};

// For a bench that lets several programs take turns: each is stopped and goes on.
void log_products(const Matmul& options) {
  std::ofstream out(options.log, std::ios::app);
  observe::repeat_products(dtype_of(options.dtypes.front()), options.sizes.back(), [&](double seconds) {
    out << fmt::format("{{\"seconds\": {}}}\n", seconds) << std::flush;
    if (!out) throw_input("cannot write to {}", options.log);
  });
}

void run_matmul(const Matmul& options) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  if (!options.log.empty()) return log_products(options);
  fmt::print("{}, {} usable cores; C = A B, n x n, {} threads; the best stretch of {} s each\n\n", host_name(),
             usable_cores(), at::get_num_threads(), options.seconds);
  fmt::print("{:<8}{:>8}{:>12}{:>14}\n", "dtype", "n", "products", "FLOP/s");
  std::string summary;
  for (const std::string& dtype : options.dtypes) {
    double best = 0;
    int64_t before = 0;
    for (const int64_t size : options.sizes) {
      const auto rate = observe::measure_matmul_rate(
          dtype_of(dtype), {.size = size, .seconds = options.seconds, .together = {}, .clock = {}});
      best = std::max(best, rate.flops_per_second);
      // A size that is too large for the time was halved, maybe to one that has been measured.
      if (rate.size == before) continue;
      before = rate.size;
      fmt::print("{:<8}{:>8}{:>12}{:>14}{}\n", dtype, rate.size, rate.repetitions, short_number(rate.flops_per_second),
                 rate.size == size ? "" : fmt::format("  ({} takes longer than the time allows)", size));
      std::fflush(stdout);
    }
    summary += fmt::format("  {} {}FLOP/s", dtype, short_number(best));
  }
  fmt::print("\nbest:{}\n", summary);
}

struct LoaderBench {
  std::string dataset;
  data::LoaderOptions loader{.seed = 1, .seq_len = 512, .micro_batch_size = 8};
  double seconds = 3;
};

void run_loader(const LoaderBench& options) {
  const auto dataset = data::Dataset::open(options.dataset);
  data::Loader loader(dataset, options.loader);
  loader.next_step();  // opens the maps and starts the reading thread
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  int64_t steps = 0, tokens = 0;
  double slowest = 0;
  while (elapsed() < options.seconds) {
    const double before = elapsed();
    for (const data::Batch& batch : loader.next_step()) tokens += batch.rows * batch.seq_len;
    slowest = std::max(slowest, elapsed() - before);
    ++steps;
  }
  const double seconds = elapsed();
  const double rate = static_cast<double>(tokens) / seconds;
  const double bytes_a_token =
      static_cast<double>(dataset->text_bytes()) / static_cast<double>(std::max<int64_t>(dataset->token_count(), 1));
  fmt::print("{}: {} documents, {} tokens, {} of text\n", options.dataset, thousands(dataset->document_count()),
             thousands(dataset->token_count()), short_bytes(dataset->text_bytes()));
  fmt::print("batches of {} x {} tokens, {} a step; data rank {} of {}\n", options.loader.micro_batch_size,
             options.loader.seq_len, options.loader.accumulation, options.loader.data_rank, options.loader.data_ranks);
  fmt::print("{} steps in {:.2f} s, {:.2f} epochs of all ranks\n\n", thousands(steps), seconds, loader.epoch());
  fmt::print("{:>10} tokens/s\n{:>10.1f} MB/s of tokens and labels (4 bytes each)\n", short_number(rate),
             rate * 8 / 1e6);
  fmt::print("{:>10.1f} MB/s of text ({:.2f} bytes a token)\n", rate * bytes_a_token / 1e6, bytes_a_token);
  fmt::print("{:>10.3f} ms a step, {:.3f} ms the slowest\n",
             seconds * 1e3 / static_cast<double>(std::max<int64_t>(steps, 1)), slowest * 1e3);
}

void add_matmul(CLI::App& bench) {
  const auto options = std::make_shared<Matmul>();
  CLI::App* command = bench.add_subcommand("matmul", "Rate of matrix products, which MFU is measured against");
  command->add_option("--sizes", options->sizes, "Numbers of rows and columns, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{16384}))
      ->capture_default_str();
  command->add_option("--dtype", options->dtypes, "Element types: bf16, fp32, fp64")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "fp32", "fp64"}))
      ->capture_default_str();
  add_threads_and_seconds(*command, options->threads, options->seconds);
  command->add_option(
      "--log", options->log,
      "Until stopped, append seconds of a product of the last size and first type to this file, as JSON");
  command->footer("Example:\n  trireme bench matmul --dtype bf16 --sizes 1024,2048,4096 --seconds 2");
  command->callback([options] { run_matmul(*options); });
}

void add_loader(CLI::App& bench) {
  const auto options = std::make_shared<LoaderBench>();
  data::LoaderOptions& loader = options->loader;
  CLI::App* command = bench.add_subcommand("loader", "Rate at which a prepared data set is handed out");
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 14);
  command->add_option("dataset", options->dataset, "Folder that `trireme data prepare` wrote")->required();
  command->add_option("--seq-len", loader.seq_len, "Tokens a sequence")->check(positive)->capture_default_str();
  command->add_option("--micro-batch-size", loader.micro_batch_size, "Sequences a batch")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--accumulation", loader.accumulation, "Batches a step")->check(positive)->capture_default_str();
  command->add_option("--data-ranks", loader.data_ranks, "Ranks that share the data; this is the first of them")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--seed", loader.seed, "Key of the order")->capture_default_str();
  command->add_option("--seconds", options->seconds, "How long to read")->check(is_duration())->capture_default_str();
  command->footer("Example:\n  trireme bench loader data/train --seq-len 1024");
  command->callback([options] { run_loader(*options); });
}

}  // namespace

CLI::Validator is_duration() {
  // A NaN is within any CLI::Range.
  const CLI::Validator number([](std::string& word) { return word.find("nan") == word.npos ? "" : "not a number"; },
                              "");
  return CLI::Range(0.01, 600.0) & number;
}

at::ScalarType dtype_of(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  return name == "fp32" ? at::kFloat : at::kDouble;
}

void add_threads_and_seconds(CLI::App& command, int& threads, double& seconds) {
  command.add_option("--threads", threads, "Threads; 0: as many as LibTorch takes by itself")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command.add_option("--seconds", seconds, "Time for each line of the table")
      ->check(is_duration())
      ->capture_default_str();
}

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand(
      "bench",
      "Measure this machine: matrix products, operations, a step and its memory, collectives, the data loader");
  bench->require_subcommand(1);
  add_matmul(*bench);
  add_loader(*bench);
  add_bench_collectives(*bench);
  add_bench_ops(*bench);
  add_bench_step(*bench);
  add_bench_memory(*bench);
}

}  // namespace trireme::cli
