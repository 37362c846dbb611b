// `trireme sbatch`: writes the script that Slurm's sbatch takes, for a run on one or several machines.
//
// Slurm tells the script that the time is nearly over; the script passes that on to the workers, which finish the step
// and save; and the job goes back into the queue, where the same script resumes the run. A run that was stopped
// otherwise (RUN/stop, scancel) or has come to its end does not.
#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "config/config.h"

namespace trireme::cli {
namespace {

struct SbatchOptions {
  std::string config;
  std::vector<std::string> overrides;
  int64_t nodes = 1;
  int64_t workers = 1;  // on each machine
  int64_t cpus = 0;     // of each worker; 0: the whole machine
  std::string time = "24:00:00";
  std::string partition;
  int64_t notice_s = 300;
  std::string mpi = "pmix";
  std::string output;
};

// As one word of a shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// Of a #SBATCH line, which no shell reads.
void check_word(const char* option, const std::string& text) {
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) || c == '"' || c == '\'')
      throw_input("{} {}: expected one word, as Slurm takes it", option, text);
  }
}

// As Slurm writes a time: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S. 0 where there is no limit, as of UNLIMITED.
int64_t seconds_of(const std::string& time) {
  std::vector<int64_t> numbers{0};
  bool days = false;
  for (const char c : time) {
    if (std::isdigit(static_cast<unsigned char>(c)) != 0 && numbers.back() < 1'000'000) {
      numbers.back() = numbers.back() * 10 + (c - '0');
    } else if (c == ':' || (c == '-' && numbers.size() == 1)) {
      days = days || c == '-';
      numbers.push_back(0);
    } else {
      return 0;
    }
  }
  const auto number = [&](size_t k) { return k < numbers.size() ? numbers[k] : 0; };
  if (days) return ((number(0) * 24 + number(1)) * 60 + number(2)) * 60 + number(3);
  if (numbers.size() > 2) return (number(0) * 60 + number(1)) * 60 + number(2);
  return number(0) * 60 + number(1);
}

void check(const SbatchOptions& options) {
  std::vector<std::string> faults;
  const auto at_least = [&](const char* option, int64_t value, int64_t least) {
    if (value < least) faults.push_back(fmt::format("{} {}: at least {}", option, value, least));
  };
  at_least("--nodes", options.nodes, 1);
  at_least("--workers", options.workers, 1);
  at_least("--cpus", options.cpus, 0);
  at_least("--notice", options.notice_s, 1);
  if (options.notice_s > 65535)
    faults.push_back(fmt::format("--notice {}: Slurm takes at most 65535", options.notice_s));
  // Slurm may send the signal so much earlier (sbatch's manual, --signal).
  constexpr int64_t kEarly = 60;
  if (const int64_t limit = seconds_of(options.time); limit > 0 && options.notice_s + kEarly >= limit) {
    faults.push_back(
        fmt::format("--notice {}: Slurm may give it {} s early, and a job of {} s (--time {}) would be told to end as "
                    "it starts; more "
                    "than {} s work, or less notice",
                    options.notice_s, kEarly, limit, options.time, options.notice_s + kEarly));
  }
  if (!faults.empty()) throw InputError(faults);
  check_word("--time", options.time);
  check_word("--partition", options.partition);
  check_word("--mpi", options.mpi);
}

// `own`: the program starts its workers itself, which it does on one machine.
std::string script(const SbatchOptions& options, const std::filesystem::path& program, bool own) {
  std::string name = std::filesystem::path(options.config).stem().string();
  for (char& c : name) {
    if (std::isspace(static_cast<unsigned char>(c)) || c == '"' || c == '\'') c = '-';
  }
  std::string text = "#!/usr/bin/env bash\n";
  const auto directive = [&](const std::string& line) { text += "#SBATCH --" + line + "\n"; };
  directive("job-name=" + name);
  directive(fmt::format("nodes={}", options.nodes));
  directive(fmt::format("ntasks-per-node={}", own ? 1 : options.workers));
  if (options.cpus > 0)
    directive(fmt::format("cpus-per-task={}", own ? options.cpus * options.workers : options.cpus));
  else
    directive("exclusive");
  directive("time=" + options.time);
  if (!options.partition.empty()) directive("partition=" + options.partition);
  directive(fmt::format("signal=B:USR1@{}", options.notice_s));
  directive("requeue");
  directive("open-mode=append");
  directive(fmt::format("output={}-%j.out", name));
  text += fmt::format(
      "\n# Written by `trireme sbatch`: {} on each of {} machine{}.\n"
      "# {} s before the time is over Slurm sends USR1 to this script, which passes it on; the workers finish their "
      "step and save,\n"
      "# the job goes back into the queue, and the same command resumes the run. `touch RUN/stop` ends it for good.\n"
      "set -uo pipefail\n"
      "cd {} || exit 2\n\n",
      options.workers == 1 ? "one worker" : fmt::format("{} workers", options.workers), options.nodes,
      options.nodes == 1 ? "" : "s", options.notice_s, quoted(std::filesystem::current_path().string()));
  std::string command;
  if (!own) {
    command += fmt::format("srun --mpi={} --kill-on-bad-exit=1 ", options.mpi);
    if (options.cpus > 0) command += fmt::format("--cpus-per-task={} ", options.cpus);
  }
  command += quoted(program.string()) + " train " + quoted(options.config);
  if (own) command += fmt::format(" --workers {}", options.workers);
  for (const std::string& setting : options.overrides) command += " --set " + quoted(setting);
  if (!own) command += " --set comm.backend=mpi";
  if (!own && options.mpi.starts_with("pmix")) {
    text +=
        "# Slurm's own choice is a ring where fences carry data and a tree where they do not. With both, now and then "
        "a rank\n"
        "# dies in MPI_Init of a message that comes too early.\n"
        "export SLURM_PMIX_FENCE=\"${SLURM_PMIX_FENCE:-tree}\"\n";
  }
  text +=
      "# Before the run starts: Slurm may send the signal early.\n"
      "run=\n"
      "time_is_over=0\n"
      "trap 'time_is_over=1 again=1; [[ -z $run ]] || kill -USR1 \"$run\"' USR1\n";
  text += command + " &\n";
  text +=
      "run=$!\n"
      "# A signal ends `wait`, and the run goes on. srun loses one that comes before it has started the workers.\n"
      "again=1\n"
      "while ((again)); do\n"
      "  again=0\n"
      "  while ((time_is_over)) && kill -USR1 \"$run\" 2>/dev/null; do sleep 5; done\n"
      "  wait \"$run\"\n"
      "  code=$?\n"
      "done\n"
      "# 5: stopped after saving. More than 128: the signal came while the workers were starting, and ended them; "
      "three\n"
      "# lives that end so are no accident.\n"
      "if ((time_is_over && (code == 5 || (code > 128 && ${SLURM_RESTART_COUNT:-0} < 3)))); then\n"
      "  scontrol requeue \"$SLURM_JOB_ID\"\n"
      "fi\n"
      "exit \"$code\"\n";
  return text;
}

}  // namespace

void add_sbatch(CLI::App& app) {
  const auto options = std::make_shared<SbatchOptions>();
  CLI::App* command = app.add_subcommand("sbatch", "Write a Slurm script that trains, saves in time and resumes");
  command->add_option("config", options->config, "The run's TOML file")->required();
  command->add_option("--nodes", options->nodes, "Number of machines; more than one need the MPI plug-in")
      ->capture_default_str();
  command->add_option("--workers", options->workers, "Workers on each machine")->capture_default_str();
  command->add_option("--cpus", options->cpus, "Processors of each worker; 0: the whole machine for the job")
      ->capture_default_str();
  command->add_option("--time", options->time, "Time limit, as Slurm takes it")->capture_default_str();
  command->add_option("--partition", options->partition, "Slurm's partition; none: its default");
  command->add_option("--notice", options->notice_s, "Seconds before the limit at which the run saves and ends")
      ->capture_default_str();
  command->add_option("--mpi", options->mpi, "srun's --mpi on several machines: pmix for Open MPI, pmi2 for MPICH")
      ->capture_default_str();
  command->add_option("--output", options->output, "File to write; none: print it");
  command->add_option("--set", options->overrides, "Replace an option of the file: section.key=value (may be repeated)")
      ->allow_extra_args(false);
  command->footer(
      "Examples:\n"
      "  trireme sbatch run.toml --workers 4 --time 8:00:00 --output run.sh && sbatch run.sh\n"
      "  trireme sbatch run.toml --nodes 8 --workers 2 --cpus 32 | sbatch\n"
      "\n"
      "One machine: its workers exchange through shared memory. Several: srun starts a process for each worker, with\n"
      "comm.backend = \"mpi\". Paths in the file are taken from the folder in which this command is called.");
  command->callback([options] {
    check(*options);
    config::Config config = config::load_config(options->config, options->overrides);
    config::resolve_world(config, options->nodes * options->workers);
    if (options->nodes > 1 &&
        (config.comm.backend == config::CommBackend::nccl ||
         (config.comm.backend == config::CommBackend::automatic && config.run.device == config::Device::cuda))) {
      throw_input(
          "--nodes {} with comm.backend = \"nccl\": the script would start MPI workers. One machine works (--nodes 1), "
          "and on several torchrun or `trireme launch --nodes {}` on each",
          options->nodes, options->nodes);
    }
    options->config = std::filesystem::absolute(options->config).string();
    std::error_code error;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) throw_errno("read", "/proc/self/exe", error.value());
    const std::string text =
        script(*options, program, options->nodes == 1 && config.comm.backend != config::CommBackend::mpi);
    if (options->output.empty()) {
      std::fputs(text.c_str(), stdout);
    } else {
      write_file_durably(options->output, text);
    }
  });
}

}  // namespace trireme::cli
