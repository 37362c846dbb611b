// Workers for a program with a training loop of its own: its own main, in as many processes as it asks for.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace trireme::cli {

struct OwnLoop {
  /// Processes on this machine. Under torchrun, srun or mpirun, which have started some already, it is not asked.
  int workers = 1;
  /// A log of each worker goes to run_dir/logs.
  std::filesystem::path run_dir;
};

/// Runs `work` in each worker, with the communicator of all of them, and returns the exit code of the process. The
/// first call starts this program again with the same arguments, once for each worker; there it is the worker,
/// with LibTorch's threads set and the caching allocator under it. When one fails, its error and its rank are shown and
/// the others end. Call it once, from main, before the first tensor.
int run_workers(int argc, char** argv, const OwnLoop& loop,
                const std::function<void(const std::shared_ptr<comm::Communicator>& world)>& work);

}  // namespace trireme::cli
