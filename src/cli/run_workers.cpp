#include "cli/run_workers.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/Error.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "cli/worker.h"
#include "comm/launch_environment.h"
#include "config/config.h"
#include "memory/caching_allocator.h"
#include "resilience/supervisor.h"
#include "train/connect.h"

namespace trireme::cli {
namespace {

ExitCode be_one(const comm::LaunchEnvironment& environment, const OwnLoop& loop,
                const std::function<void(const std::shared_ptr<comm::Communicator>&)>& work) {
  return be_worker(environment, [&](resilience::WorkerContext& context) {
    memory::install_caching_allocator();
    at::set_num_threads(context.threads);
    if (!context.thread_note.empty()) log::info("{}", context.thread_note);
    const auto world = train::connect_world(context, config::CommConfig(), loop.run_dir, config::ParallelConfig(),
                                            config::Device::cpu);
    try {
      work(world);
      world->barrier();  // who ends first would be missed by those that still read its memory
    } catch (const std::exception& error) {
      world->abort(error.what());
      throw;
    }
    return ExitCode::done;
  });
}

ExitCode launch(int argc, char** argv, const OwnLoop& loop) {
  if (loop.workers < 1) throw_input("{} workers; 1 or more work", loop.workers);
  resilience::SupervisorOptions options;
  options.arguments.assign(argv + std::min(argc, 1), argv + argc);
  options.run_dir = loop.run_dir;
  options.has_checkpoints = false;
  options.local_workers = options.world_size = loop.workers;
  const resilience::SupervisorResult result = resilience::supervise(options);
  if (!result.message.empty()) throw Error(result.code, result.message);
  return result.code;
}

int fail(ExitCode code, const std::string& message) {
  std::fflush(stdout);
  fmt::print(stderr, "error: {}\n", message);
  return static_cast<int>(code);
}

}  // namespace

int run_workers(int argc, char** argv, const OwnLoop& loop,
                const std::function<void(const std::shared_ptr<comm::Communicator>& world)>& work) {
  try {
    const comm::LaunchEnvironment environment = comm::detect_environment();
    const bool launched = environment.launcher != "none";
    return static_cast<int>(launched ? be_one(environment, loop, work) : launch(argc, argv, loop));
  } catch (const CLI::RuntimeError& error) {  // told by the launcher
    return error.get_exit_code();
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::exception& error) {
    return fail(ExitCode::internal, error.what());
  }
}

}  // namespace trireme::cli
