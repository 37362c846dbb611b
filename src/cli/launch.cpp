// `trireme launch`: the workers of one of several machines; and what `trireme train` shares with it.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "base/log.h"
#include "base/machine.h"
#include "checkpoint/run_lock.h"
#include "cli/commands.h"
#include "cli/launch_options.h"
#include "comm/nccl/nccl_world.h"
#include "comm/plugin_place.h"
#include "config/config.h"
#include "observe/format.h"
#include "observe/memory_estimate.h"
#include "resilience/cpu_share.h"
#include "resilience/supervisor.h"
#include "resilience/supervisor_program.h"
#include "resilience/worker_context.h"
#include "train/first_use.h"
#include "train/link_speed.h"

namespace trireme::cli {
namespace {

/// Told before anything is allocated: a run that is killed for want of memory has not printed its estimate yet.
void warn_of_memory(const config::Config& config, int64_t workers) {
  const int threads = resilience::cpu_share(0, static_cast<int>(workers), allowed_cpus(), cpu_quota()).threads;
  const int64_t bytes = observe::total_bytes(observe::estimate_memory(config, threads));
  if (workers * bytes <= usable_memory_bytes()) return;
  log::warning(
      "about {} are needed ({} a worker), and this machine has {}: the run may be killed. Fewer workers, a smaller "
      "model, train.micro_batch_size or train.seq_len, or train.recompute = \"full\" need less",
      observe::short_bytes(workers * bytes), observe::short_bytes(bytes), observe::short_bytes(usable_memory_bytes()));
}

}  // namespace

ExitCode launch_workers(const LaunchOptions& options) {
  const Meeting meeting = check_launch(options);
  const int64_t world = options.nodes * options.workers;
  // Every worker does this again; here it is done so that a fault is told once, and before anything is started or
  // written.
  config::Config config = config::load_config(options.config, options.overrides);
  config::resolve_world(config, world);
  if (config.comm.backend == config::CommBackend::mpi && world > 1) {
    throw_input(
        "comm.backend = \"mpi\": mpirun starts the workers, not --workers or `trireme launch`: mpirun -n {} trireme "
        "train "
        "{}; without comm.backend this command works on one machine",
        world, options.config);
  }
  // A plug-in that is not there, or not for this device, is told once, rather than by each worker.
  const bool by_default = config.comm.backend == config::CommBackend::automatic;
  const bool on_gpus = config.run.device == config::Device::cuda;
  if (world > 1 && (config.comm.backend == config::CommBackend::nccl || (by_default && on_gpus)))
    static_cast<void>(comm::load_nccl_for(on_gpus));
  static_cast<void>(train::link_speeds(config.comm.emulate, config.parallel));  // refuses unknown hardware

  // The first rank takes the lock for the run; that a live run has it is told here, before a log of that run is
  // touched. So is what the last holder left in it, which this lock wipes out when it goes.
  if (options.node_rank == 0) {
    const checkpoint::RunLock lock = checkpoint::RunLock::acquire(config.run.dir);
    if (!lock.notice().empty()) log::warning("{}", lock.notice());
    if (resilience::remove_stop_file(config.run.dir))
      log::info("removed {}, which was there before the start; one that comes from now on is obeyed",
                resilience::stop_file(config.run.dir).string());
    // Here rather than in the first worker, whose peers would wait for it with the deadline of a collective.
    train::prepare_on_first_use(config, [](const std::string& text) { log::info("{}", text); });
  }

  warn_of_memory(config, options.workers);
  const auto cpus = static_cast<int64_t>(allowed_cpus().size());
  if (options.workers > cpus) {
    log::warning("{} workers share {} CPUs: expect less speed than with {} workers", options.workers, cpus, cpus);
  }
  resilience::SupervisorOptions supervisor;
  supervisor.arguments = {"train", options.config};
  for (const std::string& text : options.overrides) {
    supervisor.arguments.push_back("--set");
    supervisor.arguments.push_back(text);
  }
  supervisor.run_dir = config.run.dir;
  supervisor.local_workers = static_cast<int>(options.workers);
  supervisor.first_rank = static_cast<int>(options.node_rank * options.workers);
  supervisor.world_size = static_cast<int>(world);
  supervisor.node_rank = static_cast<int>(options.node_rank);
  supervisor.master_addr = meeting.host;
  supervisor.master_port = meeting.port;
  const comm::PluginPlace apart = comm::find_plugin(nullptr, resilience::supervisor_program);
  if (apart.exists) resilience::become_supervisor(apart.path, supervisor);
  const resilience::SupervisorResult result = resilience::supervise(supervisor);
  if (!result.message.empty()) throw Error(result.code, result.message);
  return result.code;
}

void add_launch(CLI::App& app) {
  const auto options = std::make_shared<LaunchOptions>();
  CLI::App* command = app.add_subcommand("launch", "Train on several machines: run it once on each");
  command->add_option("config", options->config, "The run's TOML file, the same on every machine")->required();
  command->add_option("--nodes", options->nodes, "Number of machines")->required();
  command->add_option("--node-rank", options->node_rank, "Which of them this is: 0 to nodes - 1")->required();
  command->add_option("--rendezvous", options->rendezvous,
                      "HOST:PORT where all meet: the name of machine 0, and a port that is free on it");
  command->add_option("--workers", options->workers, "Workers on each machine")->capture_default_str();
  command->add_option("--set", options->overrides, "Replace an option of the file: section.key=value (may be repeated)")
      ->allow_extra_args(false);
  add_profile_option(*command, options->overrides);
  command->footer(
      "CPU workers started so exchange through shm, which spans one machine: all nodes are on one host. For several, "
      "mpirun\n"
      "starts `trireme train run.toml` with comm.backend = \"mpi\" in the file.\n"
      "\n"
      "Examples, two nodes with 4 workers each:\n"
      "  node0$ trireme launch --nodes 2 --node-rank 0 --rendezvous node0:29500 run.toml --workers 4\n"
      "  node1$ trireme launch --nodes 2 --node-rank 1 --rendezvous node0:29500 run.toml --workers 4\n"
      "\n"
      "Ranks are counted machine by machine. Each machine keeps its workers' logs in RUN/logs; rank 0's output is "
      "shown\n"
      "on machine 0. When a worker fails, the launchers of all machines end with exit code 3.\n"
      "torchrun --no-python, srun and mpirun start `trireme train run.toml` just as well.");
  command->callback([options] {
    const ExitCode code = launch_workers(*options);
    if (code != ExitCode::done) throw CLI::RuntimeError(static_cast<int>(code));
  });
}

}  // namespace trireme::cli
