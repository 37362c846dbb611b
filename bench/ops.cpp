// Every fused operation beside what one would write with ATen, by Google Benchmark: bench_ops [--filter REGEX] [--sizes
// 30m,124m,350m] [--dtype bf16] [--repetitions 7] [--min-time 0.02]. Both have the same allocator and threads, and take
// turns: a machine that does other things as well changes its speed within seconds.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <regex>

#include "aten_operations.h"
#include "base/subnormal.h"
#include "memory/caching_allocator.h"
#include "observe/format.h"
#include "observe/matmul_rate.h"
#include "observe/memory_bandwidth.h"
#include "train/time_calls.h"

namespace {

using namespace trireme;

struct Options {
  std::string filter = ".*";
  std::vector<std::string> sizes = {"30m", "124m", "350m"};
  std::string dtype = "bf16";
  int repetitions = 7;
  double min_time_s = 0.02;
};

// Keeps the times of each benchmark, and prints nothing.
class Times : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs)
      if (run.run_type == Run::RT_Iteration)
        seconds_[run.run_name.function_name].push_back(run.real_accumulated_time / static_cast<double>(run.iterations));
  }
  const std::vector<double>& of(const std::string& name) const { return seconds_.at(name); }

 private:
  std::map<std::string, std::vector<double>> seconds_;
};

void measure(const std::string& name, const std::function<std::function<void()>()>& prepare, const Options& options) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [prepare](benchmark::State& state) {
                                 const std::function<void()> call = prepare();
                                 call();  // allocates, and warms what is cached
                                 for (auto turn : state) {
                                   (void)turn;
                                   call();
                                 }
                               })
      ->UseRealTime()
      ->Repetitions(options.repetitions)
      ->MinTime(options.min_time_s);
}

void run(const Options& options) {
  const at::ScalarType dtype = options.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  const double bandwidth = observe::measure_memory_bandwidth(),
               matmul = observe::measure_matmul_rate(dtype).flops_per_second;
  fmt::print("{} threads, {}; memory {}B/s, products of matrices {}FLOP/s; medians of {} turns\n\n",
             at::get_num_threads(), options.dtype, observe::short_number(bandwidth), observe::short_number(matmul),
             options.repetitions);
  fmt::print("{:<6}{:<40}{:>16}{:>11}{:>11}{:>9}{:>10}\n", "size", "operation", "shape", "ours ms", "ATen ms", "ratio",
             "roofline");
  const std::regex filter(options.filter);
  for (const train::OperationSize& size : train::bench_sizes()) {
    if (std::ranges::find(options.sizes, size.name) == options.sizes.end()) continue;
    for (const train::OperationCase& operation : train::operation_cases(size, dtype)) {
      const auto aten = bench::aten_operation(operation.name, size, dtype);
      if (!std::regex_search(operation.name, filter) || !aten) continue;
      benchmark::ClearRegisteredBenchmarks();
      measure("ours", operation.prepare, options);
      measure("aten", aten, options);
      Times times;
      benchmark::RunSpecifiedBenchmarks(&times, "all");
      const double ours = train::quantile(times.of("ours"), 0.5), theirs = train::quantile(times.of("aten"), 0.5);
      const double roofline = std::max(operation.flops / matmul, operation.bytes / bandwidth);
      fmt::print("{:<6}{:<40}{:>16}{:>11.3f}{:>11.3f}{:>9.2f}{:>10}\n", size.name, operation.name, operation.shape,
                 ours * 1e3, theirs * 1e3, theirs / ours, observe::percent(roofline / ours, 0));
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  flush_subnormals();
  Options options;
  CLI::App app{"Fused operations beside ATen's; ratio: how many times as fast ours are."};
  app.add_option("--filter", options.filter)->capture_default_str();
  app.add_option("--sizes", options.sizes)->delimiter(',')->capture_default_str();
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"bf16", "fp32"}))->capture_default_str();
  app.add_option("--repetitions", options.repetitions)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--min-time", options.min_time_s)->check(CLI::Range(0.001, 60.0))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  // Google Benchmark takes its settings from a command line alone.
  std::vector<std::string> words = {argv[0], "--benchmark_enable_random_interleaving=true"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  memory::install_caching_allocator();
  try {
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_ops: {}\n", error.what());
    return 1;
  }
}
