// What `train` and `launch` know about the workers to start, and how they start them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/launch_environment.h"

namespace CLI {
class App;
}

namespace trireme::cli {

struct LaunchOptions {
  std::string config;                  ///< path of the TOML file
  std::vector<std::string> overrides;  ///< "section.key=value"
  int64_t workers = 1;                 ///< on this machine
  int64_t nodes = 1;
  int64_t node_rank = 0;
  std::string rendezvous;  ///< "host:port" of node 0; may be empty for one node
};

/// `--profile [STEPS]`, a short way to write --set profile.steps=STEPS. Throws CLI::ValidationError for what is no
/// number of steps.
void add_profile_option(CLI::App& command, std::vector<std::string>& overrides);

/// Where all nodes meet.
struct Meeting {
  std::string host = "127.0.0.1";
  int port = 0;  ///< 0: rank 0 takes a free port (one node only)
};

/// Checks everything but the config; throws one InputError with all faults.
Meeting check_launch(const LaunchOptions& options);

/// Is this process a worker that a launcher has started (ours, torchrun, srun, mpirun), or does it launch `workers`
/// workers itself (0: not given)? An environment of one rank, such as a shell inside srun, may launch. In a Slurm batch
/// script, the variables of a task are set although srun has not run: there SLURM_STEP_ID is missing, or the step is
/// `batch`'s own. Throws InputError when `workers` contradicts the launcher.
bool is_worker(const comm::LaunchEnvironment& environment, int64_t workers, const comm::Getenv& getenv);

/// Loads and checks the config, then runs the workers of this node to their end. Returns done or stopped; throws Error
/// with the report about a failed worker.
ExitCode launch_workers(const LaunchOptions& options);

}  // namespace trireme::cli
