#include "resilience/worker_context.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/log.h"
#include "base/machine.h"
#include "comm/flight_log.h"

namespace trireme::resilience {
namespace {

// The one piece of global state: a signal handler has no context. The first reason stays.
std::atomic<int> g_stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may use lock-free atomics only");

// The page, for the terminate handler, which has no context either.
StatusPage* g_terminate_page = nullptr;

// Nobody else acts on a second Ctrl-C: no launcher of ours is there.
std::atomic<bool> g_alone{false};
std::atomic<int64_t> g_first_interrupt{0};  // milliseconds
constexpr int64_t kSameSignalMs = 300;      // a terminal's and a launcher's signal are one request

void on_stop_signal(int signal) {
  int none = 0;
  g_stop_signal.compare_exchange_strong(none, signal);
  if (signal != SIGINT || !g_alone.load()) return;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t at = int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
  int64_t first = 0;
  if (g_first_interrupt.compare_exchange_strong(first, at) || at - first < kSameSignalMs) return;
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);
}

[[noreturn]] void on_terminate() {
  std::string message = "terminated without an exception";
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      message = std::string("an exception that nobody caught (on a helper thread?): ") + error.what();
    } catch (...) {
      message = "an exception that nobody caught, of an unknown type";
    }
  }
  if (g_terminate_page != nullptr) g_terminate_page->report_error(ExitCode::internal, message);
  log::error("{}", message);
  std::abort();
}

int positive_number(const char* text) {
  if (text == nullptr) return 0;
  // OMP_NUM_THREADS may be a list, a number a nesting level ("4,2"): the first counts.
  return std::max(0, std::atoi(text));
}

}  // namespace

std::string to_string(StopReason reason, const std::filesystem::path& run_dir) {
  switch (reason) {
    case StopReason::none:
      return "none";
    case StopReason::terminate:
      return "SIGTERM";
    case StopReason::interrupt:
      return "SIGINT";
    case StopReason::user_signal:
      return "SIGUSR1";
    case StopReason::hangup:
      return "SIGHUP";
    case StopReason::stop_file:
      return "the file " + stop_file(run_dir).string();
  }
  return "unknown";
}

void install_stop_handlers() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    sigaddset(&signals, signal);
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    // Under nohup a lost terminal is ignored, and stays so.
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  struct sigaction dump {};
  dump.sa_handler = [](int) { comm::request_flight_dump(); };
  sigemptyset(&dump.sa_mask);
  dump.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &dump, nullptr);
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR2);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

std::filesystem::path stop_file(const std::filesystem::path& run_dir) { return run_dir / "stop"; }

StopReason stop_signal() {
  switch (g_stop_signal.load(std::memory_order_relaxed)) {
    case 0:
      return StopReason::none;
    case SIGINT:
      return StopReason::interrupt;
    case SIGUSR1:
      return StopReason::user_signal;
    case SIGHUP:
      return StopReason::hangup;
    default:
      return StopReason::terminate;
  }
}

StopReason stop_reason(const std::filesystem::path& run_dir) {
  if (const StopReason signal = stop_signal(); signal != StopReason::none) return signal;
  struct stat info {};
  const bool there = ::stat(stop_file(run_dir).c_str(), &info) == 0 && S_ISREG(info.st_mode);
  return there ? StopReason::stop_file : StopReason::none;
}

bool remove_stop_file(const std::filesystem::path& run_dir) {
  std::error_code ignored;  // on a read-only folder the save has failed already, with its own message
  return std::filesystem::is_regular_file(stop_file(run_dir), ignored) &&
         std::filesystem::remove(stop_file(run_dir), ignored);
}

ThreadChoice choose_threads(const comm::LaunchEnvironment& environment, const comm::Getenv& getenv, int allowed,
                            double quota) {
  const int local = static_cast<int>(std::max<int64_t>(1, environment.local_world_size));
  const double cpus = quota > 0 ? std::min<double>(quota, allowed) : allowed;
  const int share = std::max(1, static_cast<int>(cpus / local));
  const int wanted = positive_number(getenv("OMP_NUM_THREADS"));
  const bool torchrun = getenv("TORCHELASTIC_RUN_ID") != nullptr;
  if (torchrun && wanted == 1 && share > 1) {
    return {share,
            fmt::format("OMP_NUM_THREADS=1, which torchrun sets, is overridden: {} threads a worker ({} CPUs, {} "
                        "workers on this machine)",
                        share, cpus, local)};
  }
  if (wanted > 0) return {wanted, ""};
  // Slurm has given each task CPUs of its own already; dividing them once more would leave most of them idle.
  if (const int own = positive_number(getenv("SLURM_CPUS_PER_TASK")); own > 0) return {std::min(own, allowed), ""};
  return {share, ""};
}

WorkerContext make_worker_context(comm::LaunchEnvironment environment) {
  WorkerContext context;
  context.environment = std::move(environment);
  context.status = StatusPage::from_environment();
  g_alone = !context.status;
  install_stop_handlers();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (const char* fd = std::getenv("TRIREME_PROGRESS_FD")) {
    const int number = std::atoi(fd);
    if (number > 2 && isatty(number)) {
      fcntl(number, F_SETFD, FD_CLOEXEC);
      context.progress.reset(number);
    }
    unsetenv("TRIREME_PROGRESS_FD");
  }
  // The context may move; the handler gets a page of its own, which lives as long as the process.
  if (context.status) {
    static std::optional<StatusPage> page;
    page.emplace(context.status->duplicate());
    g_terminate_page = &*page;
  }
  std::set_terminate(on_terminate);
  const ThreadChoice choice = choose_threads(
      context.environment, [](const char* name) -> const char* { return std::getenv(name); },
      static_cast<int>(allowed_cpus().size()), cpu_quota());
  context.threads = choice.threads;
  context.thread_note = choice.note;
  return context;
}

}  // namespace trireme::resilience
