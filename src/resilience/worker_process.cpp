#include "resilience/worker_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/error.h"

extern char** environ;

namespace trireme::resilience {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// What the child does before exec; returns the failed call's name, errno tells why. Everything it touches was made
/// before the fork: no allocation, no locks.
struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  const int* inherited;
  size_t inherited_count;
  int null_input;
  int output;
  const cpu_set_t* cpus;
  size_t cpu_bytes;
  pid_t parent;
  sigset_t mask;

  const char* run() const {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return "prctl(PR_SET_PDEATHSIG)";
    // The parent may have ended before the line above: then nothing would ever kill this child.
    if (getppid() != parent) _exit(127);
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    for (const int signal : {SIGPIPE, SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGUSR2})
      sigaction(signal, &by_default, nullptr);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    if (dup2(null_input, STDIN_FILENO) < 0) return "dup2(stdin)";
    if (dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0) return "dup2(output)";
    for (size_t i = 0; i < inherited_count; ++i) {
      if (fcntl(inherited[i], F_SETFD, 0) != 0) return "fcntl(inherited descriptor)";
    }
    if (cpus != nullptr) sched_setaffinity(0, cpu_bytes, cpus);  // a wish: a CPU may have gone offline meanwhile
    execve(program, arguments, environment);
    return "execve";
  }
};

struct ChildFailure {
  int error;
  char call[40];
};

}  // namespace

std::vector<std::string> environment_with(const std::vector<std::string>& replaced,
                                          const std::vector<std::string>& dropped_prefixes) {
  std::vector<std::string> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name_with_sign = text.substr(0, text.find('=') + 1);
    const bool drop = std::ranges::any_of(replaced, [&](const auto& r) { return r.starts_with(name_with_sign); }) ||
                      std::ranges::any_of(dropped_prefixes, [&](const auto& p) { return text.starts_with(p); });
    if (!drop) result.emplace_back(text);
  }
  result.insert(result.end(), replaced.begin(), replaced.end());
  return result;
}

pid_t start_worker(const WorkerCommand& command) {
  std::vector<std::string> arguments = {command.program};
  arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
  std::vector<std::string> environment = command.environment;
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> environment_pointers = pointers(environment);
  const FileDescriptor null_input = open_file("/dev/null", O_RDONLY, "open");
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) throw_internal("cannot make a pipe: {}", std::strerror(errno));
  const FileDescriptor read_end(pipe_ends[0]);
  FileDescriptor write_end(pipe_ends[1]);

  const int last_cpu = command.cpus.empty() ? 0 : *std::ranges::max_element(command.cpus);
  cpu_set_t* cpus = CPU_ALLOC(last_cpu + 1);
  const size_t cpu_bytes = CPU_ALLOC_SIZE(last_cpu + 1);
  CPU_ZERO_S(cpu_bytes, cpus);
  for (const int cpu : command.cpus) CPU_SET_S(cpu, cpu_bytes, cpus);

  ChildPlan plan{.program = command.program.c_str(),
                 .arguments = argument_pointers.data(),
                 .environment = environment_pointers.data(),
                 .inherited = command.inherited.data(),
                 .inherited_count = command.inherited.size(),
                 .null_input = null_input.get(),
                 .output = command.output,
                 .cpus = command.cpus.empty() ? nullptr : cpus,
                 .cpu_bytes = cpu_bytes,
                 .parent = getpid(),
                 .mask = {}};
  sigemptyset(&plan.mask);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP}) sigaddset(&plan.mask, signal);

  // The child must not run a handler of ours: with everything blocked over the fork, a signal waits for its new mask.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  const pid_t pid = fork();
  const int fork_error = errno;
  if (pid == 0) {
    ChildFailure failure{};
    const char* call = plan.run();
    failure.error = errno;
    std::strncpy(failure.call, call, sizeof(failure.call) - 1);
    [[maybe_unused]] const auto written = write(write_end.get(), &failure, sizeof(failure));
    _exit(127);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  CPU_FREE(cpus);
  if (pid < 0) throw_internal("cannot start a worker: fork: {}", std::strerror(fork_error));

  // Ends at once: by the child's exec, which closes the pipe, or by its message.
  write_end.reset();
  ChildFailure failure{};
  ssize_t got;
  do {
    got = read(read_end.get(), &failure, sizeof(failure));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(failure)) {
    waitpid(pid, nullptr, 0);
    throw_internal("cannot start a worker: {} of {}: {}", failure.call, command.program, std::strerror(failure.error));
  }
  return pid;
}

}  // namespace trireme::resilience
