// `trireme bench collectives`: bandwidth of the collectives between workers of this machine.
#include "comm/bench_collectives.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/bench.h"
#include "cli/launch_options.h"
#include "cli/worker.h"
#include "comm/arena.h"
#include "comm/launch_environment.h"
#include "resilience/supervisor.h"
#include "train/connect.h"

namespace trireme::cli {
namespace {

struct Options {
  int workers = 2;
  comm::BenchOptions bench;
  bool staged = false;
  bool json = false;
  std::string dtype = "fp32";
};

const std::map<std::string, at::ScalarType>& dtypes() {
  static const std::map<std::string, at::ScalarType> table = {
      {"fp32", at::kFloat}, {"fp64", at::kDouble}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf},
      {"int32", at::kInt},  {"int64", at::kLong},  {"uint8", at::kByte}};
  return table;
}

std::vector<std::string> worker_arguments(const Options& options) {
  std::vector<std::string> arguments = {"bench",        "collectives",
                                        "--min-bytes",  std::to_string(options.bench.min_bytes),
                                        "--max-bytes",  std::to_string(options.bench.max_bytes),
                                        "--seconds",    fmt::format("{}", options.bench.seconds_per_size),
                                        "--collectives"};
  std::string names;
  for (const std::string& name : options.bench.collectives) names += (names.empty() ? "" : ",") + name;
  arguments.push_back(names);
  arguments.insert(arguments.end(), {"--factor", std::to_string(options.bench.factor), "--dtype", options.dtype});
  if (options.staged) arguments.emplace_back("--staged");
  if (options.json) arguments.emplace_back("--json");
  return arguments;
}

ExitCode launch(const Options& options) {
  comm::check_bench(options.bench);
  const std::filesystem::path logs =
      std::filesystem::temp_directory_path() / fmt::format("trireme-bench-{}", ::getpid());
  resilience::SupervisorOptions supervisor;
  supervisor.arguments = worker_arguments(options);
  supervisor.run_dir = logs;
  supervisor.has_checkpoints = false;
  supervisor.local_workers = options.workers;
  supervisor.world_size = options.workers;
  const resilience::SupervisorResult result = resilience::supervise(supervisor);
  if (!result.message.empty()) throw Error(result.code, result.message);  // which names the logs: they stay
  std::filesystem::remove_all(logs);
  return result.code;
}

ExitCode work(const Options& options, const comm::LaunchEnvironment& environment) {
  return be_worker(environment, [&](resilience::WorkerContext& context) {
    at::set_num_threads(context.threads);
    config::CommConfig settings;
    settings.timeout_s = 60;
    config::ParallelConfig alone;
    alone.shard_size = 1;
    const auto world = train::connect_world(context, settings, {}, alone, config::Device::cpu);
    comm::BenchOptions bench = options.bench;
    bench.in_arena = !options.staged;
    bench.dtype = dtypes().at(options.dtype);
    const std::vector<comm::BenchResult> results = comm::bench_collectives(*world, bench);
    if (world->rank() == 0) {
      fmt::print("{}", options.json ? comm::bench_json(results, *world, bench).dump() + "\n"
                                    : comm::format_bench(results, *world, bench));
    }
    const auto wrong = std::find_if(results.begin(), results.end(), [](const auto& r) { return r.wrong != 0; });
    if (wrong != results.end()) {
      throw_internal("{} of {} bytes gave {} wrong elements", wrong->collective, wrong->bytes, wrong->wrong);
    }
    return ExitCode::done;
  });
}

}  // namespace

void add_bench_collectives(CLI::App& bench) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("collectives", "Bandwidth of the collectives between workers of this machine");
  CLI::Option* workers = command->add_option("--workers", options->workers, "Worker processes")
                             ->check(CLI::Range(1, int{comm::max_arena_ranks}))
                             ->capture_default_str();
  command->add_option("--collectives", options->bench.collectives, "Which ones, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--min-bytes", options->bench.min_bytes, "Smallest buffer")
      ->check(CLI::Range(int64_t{8}, int64_t{1} << 33))
      ->capture_default_str();
  command->add_option("--max-bytes", options->bench.max_bytes, "Largest buffer")
      ->check(CLI::Range(int64_t{8}, int64_t{1} << 33))
      ->capture_default_str();
  command->add_option("--seconds", options->bench.seconds_per_size, "Time for each size")
      ->check(CLI::Range(0.01, 60.0))
      ->capture_default_str();
  command->add_option("--factor", options->bench.factor, "From one size to the next")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Type of the elements")
      ->check(CLI::IsMember(dtypes()))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON for programs");
  command->add_flag("--staged", options->staged, "Ordinary tensors in place of those in the ranks' shared memory");
  command->footer(
      "Bandwidths are those of nccl-tests: algbw = bytes / time, busbw = algbw x what each rank must move at least.\n"
      "Each operation is first checked on whole numbers; a wrong element ends the command with code 1. More workers\n"
      "than processors are allowed: they then wait asleep.\n"
      "Example:\n  trireme bench collectives --workers 2 --collectives all_reduce --max-bytes 67108864");
  command->callback([options, workers] {
    const auto getenv = [](const char* name) -> const char* { return std::getenv(name); };
    const comm::LaunchEnvironment environment = comm::detect_environment(getenv);
    const bool worker = is_worker(environment, workers->count() > 0 ? options->workers : 0, getenv);
    const ExitCode code = worker ? work(*options, environment) : launch(*options);
    if (code != ExitCode::done) throw CLI::RuntimeError(static_cast<int>(code));
  });
}

}  // namespace trireme::cli
