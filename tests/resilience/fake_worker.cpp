// A launcher and its workers without any training: the workers fail in the ways that a script names.
//
//   fake_worker launch RUN_DIR WORKERS SCRIPT     supervises WORKERS copies of `fake_worker work RUN_DIR SCRIPT`
//   SCRIPT                                        what each rank does, separated by commas; the last one is for the
//   rest
//
// The launcher prints the message and ends with the code, as the real one does.
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "comm/launch_environment.h"
#include "resilience/supervisor.h"
#include "resilience/worker_context.h"

namespace {

using namespace std::chrono_literals;
using trireme::ExitCode;
using trireme::resilience::Phase;
using trireme::resilience::StopReason;

std::string behaviour_of(const std::string& script, int rank) {
  size_t begin = 0;
  for (int i = 0; i < rank; ++i) {
    const size_t comma = script.find(',', begin);
    if (comma == std::string::npos) break;
    begin = comma + 1;
  }
  return script.substr(begin, script.find(',', begin) - begin);
}

struct Fake {
  std::string run_dir;
  trireme::resilience::WorkerContext context;

  int fail(ExitCode code, const std::string& text) {
    context.status->report_error(code, text);
    return static_cast<int>(code);
  }
  int die(int signal) {
    // Sanitizers take such signals for themselves.
    ::signal(signal, SIG_DFL);
    raise(signal);
    std::this_thread::sleep_for(60s);
    return 99;
  }
  int until_stopped() {
    while (trireme::resilience::stop_reason(run_dir) == StopReason::none) std::this_thread::sleep_for(5ms);
    context.status->set_phase(Phase::saving);
    std::printf("stopping: %s\n",
                trireme::resilience::to_string(trireme::resilience::stop_reason(run_dir), run_dir).c_str());
    return static_cast<int>(ExitCode::stopped);
  }
};

int work(const std::string& run_dir, const std::string& script) {
  trireme::comm::LaunchEnvironment environment;
  environment.rank = std::atoi(std::getenv("RANK"));
  Fake fake{run_dir, trireme::resilience::make_worker_context(environment)};
  auto& status = *fake.context.status;
  const std::map<std::string, std::function<int()>> behaviours = {
      {"ok",
       [&] {
         std::puts("all is well");
         status.set_phase(Phase::done);
         return 0;
       }},
      {"wait", [&] { return fake.until_stopped(); }},
      {"throw", [&] { return fake.fail(ExitCode::internal, "the matrix is on fire"); }},
      {"input", [&] { return fake.fail(ExitCode::bad_input, "data/shard-3.bin is damaged"); }},
      {"follow", [&] { return fake.fail(ExitCode::worker_failed, "rank 9 did not arrive"); }},
      {"segv", [&] { return fake.die(SIGSEGV); }},
      {"kill", [&] { return fake.die(SIGKILL); }},
      {"stop", [&] { return fake.die(SIGSTOP); }},
      // A peer notices a death long before the kernel has written the core of the dead.
      {"late_segv",
       [&] {
         std::this_thread::sleep_for(500ms);
         return fake.die(SIGSEGV);
       }},
      {"pause",
       [&] {
         if (fork() == 0) {
           std::this_thread::sleep_for(300ms);
           kill(getppid(), SIGCONT);
           _exit(0);
         }
         raise(SIGSTOP);
         status.set_phase(Phase::done);
         return 0;
       }},
      {"exit0", [&] { return 0; }},
      {"exit7", [&] { return 7; }},
      {"terminate",
       [&]() -> int {
         std::thread([] { throw std::runtime_error("the prefetch thread fell"); }).join();
         return 0;
       }},
      {"linger",
       [&] {
         fake.fail(ExitCode::internal, "I cannot leave");
         std::this_thread::sleep_for(60s);
         return 1;
       }},
      {"deaf",
       [&] {
         signal(SIGTERM, SIG_IGN);
         std::this_thread::sleep_for(60s);
         return 0;
       }},
      {"print",
       [&] {
         for (int i = 0; i < 30; ++i) std::printf("line %d\n", i);
         return fake.fail(ExitCode::internal, "after the lines");
       }},
      {"flood",
       [&] {
         const std::string line(1000, 'x');
         for (int i = 0; i < 4000; ++i) std::puts(line.c_str());
         std::puts("the flood is over");
         status.set_phase(Phase::done);
         return 0;
       }},
      {"environment",
       [&] {
         for (const char* name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
                                  "MASTER_PORT", "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID", "TRIREME_STATUS_FD"}) {
           const char* value = std::getenv(name);
           std::printf("%s=%s\n", name, value != nullptr ? value : "-");
         }
         cpu_set_t set;
         sched_getaffinity(0, sizeof(set), &set);
         std::printf("cpus=%d threads=%d\n", CPU_COUNT(&set), fake.context.threads);
         status.set_phase(Phase::done);
         return 0;
       }},
      {"port",
       [&] {
         if (environment.rank == 0) {
           std::this_thread::sleep_for(50ms);
           status.publish_port(4711);
         }
         std::printf("port %d\n", status.await_port(2s));
         status.set_phase(Phase::done);
         return 0;
       }},
  };
  const std::string name = behaviour_of(script, static_cast<int>(environment.rank));
  const auto found = behaviours.find(name);
  if (found == behaviours.end()) return 98;
  status.set_phase(Phase::training);
  if (name != "ok") status.set_step(12);
  return found->second();
}

}  // namespace

int main(int argc, char** argv) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (argc == 4 && std::strcmp(argv[1], "work") == 0) return work(argv[2], argv[3]);
  if (argc != 5) return 97;
  trireme::resilience::SupervisorOptions options;
  options.run_dir = argv[2];
  options.local_workers = std::atoi(argv[3]);
  options.world_size = options.local_workers;
  options.arguments = {"work", argv[2], argv[4]};
  if (const char* program = std::getenv("FAKE_PROGRAM")) options.program = program;
  try {
    const auto result = trireme::resilience::supervise(options);
    if (!result.message.empty()) std::fprintf(stderr, "trireme: error: %s\n", result.message.c_str());
    return static_cast<int>(result.code);
  } catch (const trireme::Error& error) {
    std::fprintf(stderr, "trireme: error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
