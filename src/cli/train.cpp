// `trireme train`: starts the workers of this machine, or is one of them.
//
// The same command line serves both, so that torchrun, srun and mpirun need no other program: a process that finds its
// rank in the environment is a worker. Also a single worker is a child process: one path, one log file, one way to
// report.
#include "train/run_worker.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "cli/commands.h"
#include "cli/launch_options.h"
#include "cli/worker.h"
#include "config/config.h"

namespace trireme::cli {
namespace {

const char* get_environment(const char* name) { return std::getenv(name); }

ExitCode work(const LaunchOptions& options, const comm::LaunchEnvironment& environment) {
  return be_worker(environment, [&](resilience::WorkerContext& context) {
    return train::run_worker(config::load_config(options.config, options.overrides), context);
  });
}

}  // namespace

void add_train(CLI::App& app) {
  const auto options = std::make_shared<LaunchOptions>();
  CLI::App* command = app.add_subcommand("train", "Train a model as a TOML file says, or go on with a run");
  command->add_option("config", options->config, "The run's TOML file")->required();
  CLI::Option* workers =
      command->add_option("--workers", options->workers, "Worker processes on this machine")->capture_default_str();
  command->add_option("--set", options->overrides, "Replace an option of the file: section.key=value (may be repeated)")
      ->allow_extra_args(false);
  add_profile_option(*command, options->overrides);
  command->footer(
      "Examples:\n"
      "  trireme train configs/tiny.toml\n"
      "  trireme train configs/sotu.toml --workers 2\n"
      "  trireme train run.toml --set train.steps=2000 --set optimizer.lr=3e-4\n"
      "  trireme train run.toml --profile 5\n"
      "  torchrun --no-python --nproc-per-node 2 build/trireme train run.toml\n"
      "  mpirun -n 2 build/trireme train run.toml --set comm.backend=mpi\n"
      "\n"
      "The run's folder (run.dir) gets checkpoints, metrics.jsonl, the resolved config and a log of each worker; the\n"
      "terminal shows rank 0. The same command resumes from the newest complete checkpoint. Ctrl-C, SIGTERM, SIGUSR1\n"
      "or `touch RUN/stop` finish the step, save and end with exit code 5; a second Ctrl-C ends at once.\n"
      "`trireme config --all` explains every option.");
  command->callback([options, workers] {
    const comm::LaunchEnvironment environment = comm::detect_environment(get_environment);
    const int64_t wanted = workers->count() > 0 ? options->workers : 0;
    if (workers->count() > 0) check_launch(*options);
    const ExitCode code =
        is_worker(environment, wanted, get_environment) ? work(*options, environment) : launch_workers(*options);
    if (code != ExitCode::done) throw CLI::RuntimeError(static_cast<int>(code));
  });
}

}  // namespace trireme::cli
