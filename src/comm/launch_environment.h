// Who am I, of how many, and where do the workers meet: read from the variables that a launcher has set.
//
// Understood, in this order: RANK and WORLD_SIZE (Trireme's own launcher, torchrun), mpirun of Open MPI and of MPICH,
// Slurm (srun). Without any, rank 0 of 1.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::comm {

struct LaunchEnvironment {
  std::string launcher = "none";  ///< none, torchrun (and Trireme's own), slurm, openmpi, mpich
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  std::string master_addr = "127.0.0.1";  ///< empty: not known, ranks are on several machines
  int64_t master_port = 0;                ///< 0: rank 0 takes a free port and publishes it through the launcher
  bool agent_store = false;  ///< the launcher's agent already serves the store, so that rank 0 is a client too
  std::string run_id = "0";  ///< changes with every restart, so that no worker reads a key of a life before
};

/// Value of a variable, or nullptr.
using Getenv = std::function<const char*(const char*)>;

/// Reads the process's environment. Throws one InputError with every fault found.
LaunchEnvironment detect_environment();
LaunchEnvironment detect_environment(const Getenv& getenv);

/// The first host of a Slurm node list: `gpu[07-12,15],cpu1` gives gpu07. Throws InputError when it cannot be read.
std::string first_host(const std::string& node_list);

}  // namespace trireme::comm
