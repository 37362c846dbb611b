// `trireme bench ops`: every fused operation at the sizes of a model, as a share of what the machine could do.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/error.h"
#include "base/host.h"
#include "cli/bench.h"
#include "memory/caching_allocator.h"
#include "observe/format.h"
#include "observe/matmul_rate.h"
#include "observe/memory_bandwidth.h"
#include "train/operation_cases.h"
#include "train/time_calls.h"

namespace trireme::cli {
namespace {

using observe::short_number;

struct Options {
  std::string filter = ".*";
  std::vector<std::string> sizes = {"30m", "124m", "350m"};
  std::vector<std::string> dtypes = {"bf16"};
  int threads = 0;
  double seconds = 0.2;
  bool json = false;
};

std::vector<train::OperationSize> sizes_of(const std::vector<std::string>& words) {
  std::vector<train::OperationSize> sizes;
  std::vector<std::string> names, faults;
  for (const train::OperationSize& size : train::bench_sizes()) names.push_back(size.name);
  for (const std::string& word : words) {
    const auto known = std::ranges::find(train::bench_sizes(), word, &train::OperationSize::name);
    if (known != train::bench_sizes().end()) {
      sizes.push_back(*known);
    } else if (word.ends_with(".toml")) {
      try {
        sizes.push_back(train::operation_size(config::load_config(word), word));
      } catch (const InputError& error) {
        faults.insert(faults.end(), error.faults().begin(), error.faults().end());
      }
    } else {
      faults.push_back(
          fmt::format("--sizes {}: expected {}, or the .toml file of a run", word, fmt::join(names, ", ")));
    }
  }
  if (!faults.empty()) throw InputError(faults);
  return sizes;
}

std::regex regex_of(const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    throw_input("--filter {} is no regular expression: {}", text, error.what());
  }
}

struct Line {
  std::string size, dtype;
  const train::OperationCase& operation;
  train::CallTime time;
  double roofline_s;  // the least time, by the machine's rates
};

void print(const Line& line) {
  const train::OperationCase& operation = line.operation;
  const double best = line.time.best_s;
  fmt::print("{:<6}{:<6}{:<40}{:>16}{:>11.3f}{:>10}{:>9}{:>10}\n", line.size, line.dtype, operation.name,
             operation.shape, best * 1e3, short_number(operation.bytes / best),
             operation.flops > 0 ? short_number(operation.flops / best) : "",
             observe::percent(line.roofline_s / best, 0));
  std::fflush(stdout);
}

nlohmann::ordered_json to_json(const Line& line) {
  const train::OperationCase& operation = line.operation;
  return {{"size", line.size},
          {"dtype", line.dtype},
          {"operation", operation.name},
          {"shape", operation.shape},
          {"flops", operation.flops},
          {"bytes", operation.bytes},
          {"best_s", line.time.best_s},
          {"median_s", line.time.median_s},
          {"roofline_share", line.roofline_s / line.time.best_s}};
}

void run(const Options& options) {
  const std::regex filter = regex_of(options.filter);
  const std::vector<train::OperationSize> sizes = sizes_of(options.sizes);
  if (!memory::caching_allocator_installed()) memory::install_caching_allocator();
  if (options.threads > 0) at::set_num_threads(options.threads);
  nlohmann::ordered_json json;
  json["threads"] = at::get_num_threads();
  const double bandwidth = observe::measure_memory_bandwidth();
  json["memory_bytes_per_second"] = bandwidth;
  if (!options.json)
    fmt::print(
        "{}, {} threads, memory {}B/s; the best stretch of {} s each; the roofline is the longer of FLOPs at the "
        "rate of matrix products and bytes at that of memory\n\n{:<6}{:<6}{:<40}{:>16}{:>11}{:>10}{:>9}{:>10}\n",
        host_name(), at::get_num_threads(), short_number(bandwidth), options.seconds, "size", "dtype", "operation",
        "shape", "ms", "B/s", "FLOP/s", "roofline");
  int64_t measured = 0;
  for (const std::string& dtype : options.dtypes) {
    const double matmul = observe::measure_matmul_rate(dtype_of(dtype)).flops_per_second;
    json["matmul_flops_per_second"][dtype] = matmul;
    for (const train::OperationSize& size : sizes) {
      for (const train::OperationCase& operation : train::operation_cases(size, dtype_of(dtype))) {
        if (!std::regex_search(operation.name, filter)) continue;
        const Line line{size.name, dtype, operation, train::time_calls(operation.prepare(), options.seconds),
                        std::max(operation.flops / matmul, operation.bytes / bandwidth)};
        if (options.json)
          json["operations"].push_back(to_json(line));
        else
          print(line);
        ++measured;
      }
    }
  }
  if (measured == 0) throw_input("--filter {} matches no operation; without it all are listed", options.filter);
  if (options.json) fmt::print("{}\n", json.dump());
}

}  // namespace

void add_bench_ops(CLI::App& bench) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("ops", "Every fused operation, forward and backward, at the sizes of a model");
  command->add_option("--filter", options->filter, "Only operations whose name has a match of this regular expression")
      ->capture_default_str();
  command
      ->add_option("--sizes", options->sizes,
                   "Models, separated by commas: 30m, 124m, 350m (configs/bench), or the .toml file of a run")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--dtype", options->dtypes, "Element types: bf16, fp16, fp32, fp64")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "fp16", "fp32", "fp64"}))
      ->capture_default_str();
  add_threads_and_seconds(*command, options->threads, options->seconds);
  command->add_flag("--json", options->json, "One JSON object with all lines");
  command->footer(
      "`tools/bench.sh ops` times the same operations beside ATen's.\n"
      "Example:\n  trireme bench ops --filter norm --sizes 30m,run.toml --dtype bf16,fp32");
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
