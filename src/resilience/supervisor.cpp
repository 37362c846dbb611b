#include "resilience/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/machine.h"
#include "comm/flight_log.h"
#include "resilience/cpu_share.h"
#include "resilience/failure.h"
#include "resilience/failure_report.h"
#include "resilience/status_page.h"
#include "resilience/terminal.h"
#include "resilience/worker_process.h"

namespace trireme::resilience {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{100};
constexpr int kTailLines = 15;
/// A SIGKILL needs no longer, unless the process hangs in the kernel (a dead network file system).
constexpr milliseconds kKillPatience{5000};
/// timeout(1) and some batch systems send a signal to the process and to its group: the launcher gets it twice.
constexpr milliseconds kSameSignal{300};

/// Takes signals as readable events instead of handlers, and gives the mask back at the end.
class SignalEvents {
 public:
  SignalEvents() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGCHLD, SIGCONT, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
      // Under nohup SIGHUP is ignored, and stays so; a blocked signal would be queued for us all the same.
      struct sigaction action {};
      sigaction(signal, nullptr, &action);
      if (signal == SIGHUP && action.sa_handler == SIG_IGN) continue;
      sigaddset(&set, signal);
    }
    // With SIGCHLD ignored, as some parents leave it, children vanish and waitpid has nothing to tell.
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &by_default, &child_before_);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    // A terminal or pipe that is gone must not end the launcher.
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &pipe_before_);
    fd_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) throw_internal("cannot watch signals: signalfd: {}", std::strerror(errno));
  }
  ~SignalEvents() {
    sigaction(SIGPIPE, &pipe_before_, nullptr);
    sigaction(SIGCHLD, &child_before_, nullptr);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalEvents(const SignalEvents&) = delete;
  SignalEvents& operator=(const SignalEvents&) = delete;

  int fd() const { return fd_.get(); }
  /// The next signal, or 0.
  int next() const {
    signalfd_siginfo info{};
    return read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  FileDescriptor fd_;
  sigset_t before_{};
  struct sigaction pipe_before_ {};
  struct sigaction child_before_ {};
};

struct Worker {
  int local_rank = 0;
  pid_t pid = 0;
  bool running = false;
  bool failed = false;                             ///< a failure of it is recorded
  std::optional<Clock::time_point> stopped_since;  ///< SIGSTOP and its kin
  int stop_signal = 0;
  FileDescriptor log;
  int64_t log_begin = 0;  ///< where this run's part of the log begins
};

class Supervisor {
 public:
  explicit Supervisor(const SupervisorOptions& options)
      : options_(options),
        page_(StatusPage::create(options.local_workers)),
        shows_rank_0_(options.first_rank == 0),
        terminal_(STDOUT_FILENO, isatty(STDOUT_FILENO)),
        notices_(STDERR_FILENO, isatty(STDERR_FILENO)),
        oom_kills_at_start_(out_of_memory_kills()) {}

  ~Supervisor() {
    // Left by an exception: what runs is ended, and not waited for longer than a SIGKILL needs.
    signal_running(SIGKILL);
    const auto last = Clock::now() + kKillPatience;
    for (Worker& worker : workers_) {
      while (worker.running && waitpid(worker.pid, nullptr, WNOHANG) == 0 && Clock::now() < last)
        std::this_thread::sleep_for(milliseconds(5));
    }
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  SupervisorResult run() {
    open_logs();
    for (int i = 0; i < options_.local_workers; ++i) start(i);
    rank_0_write_end_.reset();
    while (any_running()) {
      wait_for_events(kTick);
      handle_signals();
      reap();
      if (killed_by_user_) return end_by_user();
      find_silent_failures();
      if (!failures_.empty() && Clock::now() >= verdict_time()) break;
    }
    drain_rank_0();
    if (!failures_.empty()) return end_by_failure();
    terminal_.finish(5000);
    return {stopped_ ? ExitCode::stopped : ExitCode::done, ""};
  }

 private:
  // -- start --------------------------------------------------------------------------------------------------------

  int rank_of(const Worker& worker) const { return options_.first_rank + worker.local_rank; }
  bool is_shown(const Worker& worker) const { return shows_rank_0_ && worker.local_rank == 0; }

  void open_logs() {
    make_directories(options_.run_dir / "logs");
    comm::remove_flight_logs(flight_folder(), options_.first_rank, options_.local_workers, options_.world_size);
    for (int i = 0; i < options_.local_workers; ++i) {
      Worker worker;
      worker.local_rank = i;
      const auto path = log_path(options_.run_dir, rank_of(worker));
      worker.log = open_file(path, O_WRONLY | O_CREAT | O_APPEND, "open the log");
      write_all(worker.log.get(),
                fmt::format("=== {} rank {} of {}\n", utc_now(), rank_of(worker), options_.world_size), path);
      worker.log_begin = lseek(worker.log.get(), 0, SEEK_END);
      workers_.push_back(std::move(worker));
    }
    if (!shows_rank_0_) return;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw_internal("cannot make a pipe: {}", std::strerror(errno));
    rank_0_output_.reset(ends[0]);
    rank_0_write_end_.reset(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }

  void start(int local_rank) {
    Worker& worker = workers_[static_cast<size_t>(local_rank)];
    const CpuShare share = cpu_share(local_rank, options_.local_workers, cpus_, quota_);
    std::vector<std::string> variables = {
        fmt::format("RANK={}", rank_of(worker)),
        fmt::format("LOCAL_RANK={}", local_rank),
        fmt::format("WORLD_SIZE={}", options_.world_size),
        fmt::format("LOCAL_WORLD_SIZE={}", options_.local_workers),
        fmt::format("GROUP_RANK={}", options_.node_rank),
        fmt::format("MASTER_ADDR={}", options_.master_addr),
        fmt::format("MASTER_PORT={}", options_.master_port),
        fmt::format("{}={}", StatusPage::kEnvironmentVariable, page_.fd()),
    };
    WorkerCommand command;
    command.inherited = {page_.fd()};
    if (std::getenv("OMP_NUM_THREADS") == nullptr)
      variables.push_back(fmt::format("OMP_NUM_THREADS={}", share.threads));
    FileDescriptor progress;
    if (is_shown(worker) && isatty(STDOUT_FILENO)) {
      // A descriptor of its own: number 1 is the worker's log.
      progress.reset(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
      variables.push_back(fmt::format("TRIREME_PROGRESS_FD={}", progress.get()));
      command.inherited.push_back(progress.get());
    }
    command.program = options_.program;
    command.arguments = options_.arguments;
    // What another launcher left must not make the worker look for that launcher's store.
    command.environment = environment_with(variables, {"TORCHELASTIC_", "TRIREME_PROGRESS_FD="});
    command.output = is_shown(worker) ? rank_0_write_end_.get() : worker.log.get();
    // Another launcher of the same run may be on this machine, and would pin to the same CPUs.
    if (options_.local_workers == options_.world_size) command.cpus = share.cpus;
    worker.pid = start_worker(command);
    worker.running = true;
  }

  // -- watch --------------------------------------------------------------------------------------------------------

  bool any_running() const { return std::ranges::any_of(workers_, &Worker::running); }

  void wait_for_events(milliseconds longest) {
    pollfd descriptors[] = {{signals_.fd(), POLLIN, 0},
                            {rank_0_output_ ? rank_0_output_.get() : -1, POLLIN, 0},
                            {terminal_.waiting() ? terminal_.fd() : -1, POLLOUT, 0},
                            {notices_.waiting() ? notices_.fd() : -1, POLLOUT, 0}};
    poll(descriptors, 4, static_cast<int>(longest.count()));
    drain_rank_0();
    terminal_.pump();
    notices_.pump();
  }

  /// Moves what rank 0 has written into its log and to the terminal.
  void drain_rank_0() {
    char buffer[16384];
    while (rank_0_output_) {
      const ssize_t got = read(rank_0_output_.get(), buffer, sizeof(buffer));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return;  // nothing for now
      if (got == 0) {
        rank_0_output_.reset();
        return;
      }
      const std::string_view text(buffer, static_cast<size_t>(got));
      write_log(workers_.front(), text);
      terminal_.show(text);
    }
  }

  /// A log on a full disk must not end the training.
  void write_log(const Worker& worker, std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = write(worker.log.get(), text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        if (!std::exchange(log_trouble_told_, true)) {
          notice(fmt::format("cannot write {}: {}", log_path(options_.run_dir, rank_of(worker)).string(),
                             std::strerror(errno)));
        }
        return;
      }
      text.remove_prefix(static_cast<size_t>(written));
    }
  }

  void notice(const std::string& text) { notices_.show("trireme: " + text + "\n"); }

  void handle_signals() {
    while (const int signal = signals_.next()) {
      const auto now = Clock::now();
      if (signal == SIGCHLD) continue;  // reap() looks at every worker anyway: signals of one kind are merged
      if (signal == SIGCONT) {
        // This process was stopped too (Ctrl-Z, then fg): the time in between does not count.
        for (Worker& worker : workers_) {
          if (worker.stopped_since) worker.stopped_since = now;
        }
        continue;
      }
      if (signal == SIGUSR2) {
        // The workers' records are read where they lie, whatever the workers do.
        const std::string dump = dump_flight("on request (SIGUSR2)");
        notice(dump.empty() ? "SIGUSR2: there is no flight recorder to write down" : "flight recorder: " + dump);
        continue;
      }
      if (signal == SIGINT) {
        if (first_interrupt_ && now - *first_interrupt_ > kSameSignal) killed_by_user_ = true;
        if (!first_interrupt_) {
          first_interrupt_ = now;
          notice("SIGINT: the workers finish their step, save and end; a second one ends them at once");
        }
      }
      signal_running(signal);
    }
  }

  std::filesystem::path flight_folder() const { return options_.run_dir / "flight"; }

  /// The path of a file with what all workers of the run did last; empty when there is no recorder.
  std::string dump_flight(const std::string& why) const {
    try {
      return comm::dump_flight(flight_folder(), why).string();
    } catch (const Error&) {
      return "";  // one worker, or comm.flight_recorder = 0
    }
  }

  void signal_running(int signal) {
    for (const Worker& worker : workers_) {
      if (worker.running) kill(worker.pid, signal);
    }
  }

  bool oom_killed() const { return oom_kills_at_start_ >= 0 && out_of_memory_kills() > oom_kills_at_start_; }

  void reap() {
    for (Worker& worker : workers_) {
      int status = 0;
      // One worker may have several changes to tell: stopped, continued, ended.
      while (worker.running && waitpid(worker.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == worker.pid) {
        if (WIFSTOPPED(status)) {
          worker.stopped_since = Clock::now();
          worker.stop_signal = WSTOPSIG(status);
          if (!ending_) {
            notice(fmt::format("rank {} (pid {}) is stopped by {}; unless it is continued within {} s the run ends",
                               rank_of(worker), worker.pid, signal_in_words(worker.stop_signal),
                               static_cast<double>(options_.stop_patience.count()) / 1000));
          }
        } else if (WIFCONTINUED(status)) {
          worker.stopped_since.reset();
        } else {
          worker.running = false;
          worker.stopped_since.reset();
          take_end(worker, status);
        }
      }
    }
  }

  void take_end(Worker& worker, int status) {
    if (is_shown(worker)) drain_rank_0();
    if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::stopped)) stopped_ = true;
    const WorkerStatus slot = page_.read(worker.local_rank);
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (worker.failed || (ending_ && (signal == SIGTERM || signal == SIGKILL))) return;
    if (auto failure = failure_from_exit(worker.local_rank, worker.pid, status, slot, Clock::now().time_since_epoch(),
                                         oom_killed())) {
      // Once the others are being ended, an error is their answer to that, whatever it says. A crash is not: its core
      // was being written when the peers were already gone.
      if (ending_ && signal == 0) failure->kind = FailureKind::follower;
      add(worker, std::move(*failure));
    }
  }

  /// Failures of workers that are still there: stopped for too long, or not ending after their error.
  void find_silent_failures() {
    const auto now = Clock::now();
    for (Worker& worker : workers_) {
      if (!worker.running || worker.failed) continue;
      Failure failure;
      failure.local_rank = worker.local_rank;
      failure.pid = worker.pid;
      if (worker.stopped_since && now - *worker.stopped_since >= options_.stop_patience) {
        failure.what = fmt::format("was stopped by {} and not continued", signal_in_words(worker.stop_signal));
        failure.time = worker.stopped_since->time_since_epoch();
      } else if (page_.has_error(worker.local_rank)) {
        const WorkerStatus slot = page_.read(worker.local_rank);
        if (now.time_since_epoch() - slot.error_time < options_.linger_patience) continue;
        failure.what = "reported an error and did not end by itself";
        failure.time = slot.error_time;
        failure.code = slot.error_code;
        if (slot.error_code == ExitCode::worker_failed) failure.kind = FailureKind::follower;
      } else {
        continue;
      }
      failure.status = page_.read(worker.local_rank);
      add(worker, std::move(failure));
    }
  }

  void add(Worker& worker, Failure failure) {
    worker.failed = true;
    // The tail is taken first, so that the error does not stand in the report twice.
    tails_.push_back(
        log_tail(log_path(options_.run_dir, rank_of(worker)).string(), worker.log_begin, kTailLines, "    | "));
    if (failure.status.has_error) write_log(worker, "trireme: error: " + failure.status.error + "\n");
    first_failure_ = std::min(first_failure_.value_or(Clock::now()), Clock::now());
    if (failure.kind == FailureKind::own) first_cause_ = std::min(first_cause_.value_or(Clock::now()), Clock::now());
    failures_.push_back(std::move(failure));
  }

  /// When to stop waiting for a failure that explains those at hand. A stopped peer explains them after its patience
  /// only.
  Clock::time_point verdict_time() const {
    if (first_cause_) return *first_cause_ + options_.settle;
    Clock::time_point verdict = *first_failure_ + options_.cause_patience;
    for (const Worker& worker : workers_) {
      if (worker.stopped_since) verdict = std::max(verdict, *worker.stopped_since + options_.stop_patience + kTick);
    }
    return verdict;
  }

  // -- end ----------------------------------------------------------------------------------------------------------

  void end_workers(milliseconds patience) {
    ending_ = true;
    const auto deadline = Clock::now() + patience;
    for (const Worker& worker : workers_) {
      // A stopped process does not see SIGTERM until it is continued.
      if (worker.running) kill(worker.pid, worker.stopped_since || patience.count() == 0 ? SIGKILL : SIGTERM);
    }
    while (any_running() && Clock::now() < deadline) wait_and_reap();
    signal_running(SIGKILL);
    const auto last = Clock::now() + kKillPatience;
    while (any_running() && Clock::now() < last) wait_and_reap();
    for (Worker& worker : workers_) {
      if (!worker.running) continue;
      notice(fmt::format("rank {} (pid {}) does not end after SIGKILL: it hangs in the kernel, often in a file system",
                         rank_of(worker), worker.pid));
      worker.running = false;  // waiting for it would hang this process as well
    }
    drain_rank_0();
  }

  void wait_and_reap() {
    wait_for_events(milliseconds(20));
    // An impatient user need not wait for the patience to end.
    while (const int signal = signals_.next()) {
      if (signal == SIGINT) signal_running(SIGKILL);
    }
    reap();
  }

  SupervisorResult end_by_failure() {
    std::vector<Bystander> bystanders;
    for (const Worker& worker : workers_) {
      if (worker.running && !worker.failed) {
        bystanders.push_back({rank_of(worker), worker.pid, page_.read(worker.local_rank)});
      }
    }
    // Before the others are ended: what they do then would cover what they did last.
    std::string flight, behind;
    if (const Failure& seen = root_cause(failures_); !is_bad_input(seen)) {
      flight = dump_flight(fmt::format("rank {} {}", options_.first_rank + seen.local_rank, seen.what));
      if (!flight.empty()) behind = comm::flight_summary(comm::read_flight_logs(flight_folder()), "    ");
    }
    end_workers(options_.end_patience);
    const Failure& cause = root_cause(failures_);
    const std::string report = failure_report({.run_dir = options_.run_dir,
                                               .has_checkpoints = options_.has_checkpoints,
                                               .first_rank = options_.first_rank,
                                               .failures = failures_,
                                               .bystanders = bystanders,
                                               .tail = tails_[static_cast<size_t>(&cause - failures_.data())],
                                               .flight = flight,
                                               .behind = behind});
    terminal_.finish(1000);
    notices_.finish(1000);
    return {is_bad_input(cause) ? cause.code : ExitCode::worker_failed, report};
  }

  SupervisorResult end_by_user() {
    end_workers(milliseconds(0));
    terminal_.finish(1000);
    notices_.finish(1000);
    return {ExitCode::worker_failed, "ended at once by a second SIGINT, without saving" +
                                         (options_.has_checkpoints ? "; " + how_to_resume(options_.run_dir) : "")};
  }

  const SupervisorOptions& options_;
  SignalEvents signals_;
  StatusPage page_;
  const bool shows_rank_0_;
  Terminal terminal_;
  Terminal notices_;
  const int64_t oom_kills_at_start_;
  const std::vector<int> cpus_ = allowed_cpus();
  const double quota_ = cpu_quota();
  std::vector<Worker> workers_;
  FileDescriptor rank_0_output_;
  FileDescriptor rank_0_write_end_;

  std::vector<Failure> failures_;
  std::vector<std::string> tails_;  ///< of the log of each failure
  std::optional<Clock::time_point> first_failure_;
  std::optional<Clock::time_point> first_cause_;
  std::optional<Clock::time_point> first_interrupt_;
  bool killed_by_user_ = false;
  bool stopped_ = false;
  bool ending_ = false;
  bool log_trouble_told_ = false;
};

}  // namespace

std::filesystem::path log_path(const std::filesystem::path& run_dir, int rank) {
  return run_dir / "logs" / fmt::format("rank-{:05}.log", rank);
}

SupervisorResult supervise(const SupervisorOptions& options) {
  TRIREME_CHECK(options.local_workers > 0 && options.first_rank >= 0 &&
                    options.first_rank + options.local_workers <= options.world_size,
                "{} workers from rank {} on in a world of {}", options.local_workers, options.first_rank,
                options.world_size);
  return Supervisor(options).run();
}

}  // namespace trireme::resilience
