#include "cli/launch_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstring>

#include "comm/arena.h"

namespace trireme::cli {
namespace {

// What one shared arena serves.
constexpr int64_t kMostWorkers = comm::max_arena_ranks;
constexpr int64_t kMostNodes = 100'000;

Meeting parse_meeting(const std::string& text, std::vector<std::string>& faults) {
  Meeting meeting;
  const size_t colon = text.rfind(':');
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  meeting.host = text.substr(0, colon);
  // IPv6 in brackets, as in a URL: [fe80::1]:29500.
  if (meeting.host.starts_with('[') && meeting.host.ends_with(']')) {
    meeting.host = meeting.host.substr(1, meeting.host.size() - 2);
  } else if (meeting.host.find(':') != std::string::npos) {
    meeting.host.clear();
  }
  const char* end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, meeting.port);
  if (meeting.host.empty() || port.empty() || error != std::errc{} || stop != end || meeting.port < 1 ||
      meeting.port > 65535) {
    faults.push_back(
        fmt::format("--rendezvous {}: expected HOST:PORT, the host of node 0 and a free port on it from 1 to "
                    "65535, such as node0:29500",
                    text));
  }
  return meeting;
}

}  // namespace

void add_profile_option(CLI::App& command, std::vector<std::string>& overrides) {
  command
      .add_option_function<std::string>(
          "--profile", [&overrides](const std::string& steps) { overrides.push_back("profile.steps=" + steps); },
          "Time every operation of so many steps, by default 3, after three of warm-up (profile.warmup_steps): a "
          "table, "
          "and RUN/profile for ui.perfetto.dev")
      ->type_name("[STEPS]")
      ->expected(0, 1)
      ->default_str("3")
      ->check([](const std::string& word) {
        const bool number = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
        return number ? "" : "expected a number of steps, found " + word + "; the config file goes before --profile";
      });
}

Meeting check_launch(const LaunchOptions& options) {
  std::vector<std::string> faults;
  if (options.workers < 1) {
    faults.push_back(fmt::format("--workers {}: at least 1 worker must train", options.workers));
  } else if (options.workers > kMostWorkers) {
    faults.push_back(fmt::format("--workers {}: at most {} on one machine", options.workers, kMostWorkers));
  }
  if (options.nodes < 1 || options.nodes > kMostNodes) {
    faults.push_back(fmt::format("--nodes {}: expected 1 to {}", options.nodes, kMostNodes));
  } else if (options.node_rank < 0 || options.node_rank >= options.nodes) {
    faults.push_back(fmt::format("--node-rank {}: with --nodes {} it is 0 to {}", options.node_rank, options.nodes,
                                 options.nodes - 1));
  }
  Meeting meeting;
  if (!options.rendezvous.empty()) {
    meeting = parse_meeting(options.rendezvous, faults);
  } else if (options.nodes > 1) {
    faults.push_back(
        fmt::format("--nodes {} needs --rendezvous HOST:PORT: the host of node 0 and a free port on it, the "
                    "same on every node",
                    options.nodes));
  }
  if (!faults.empty()) throw InputError(faults);
  return meeting;
}

bool is_worker(const comm::LaunchEnvironment& environment, int64_t workers, const comm::Getenv& getenv) {
  if (environment.launcher == "none") return false;
  if (environment.launcher == "slurm") {
    const char* step = getenv("SLURM_STEP_ID");
    // 4294967291 is SLURM_BATCH_SCRIPT of slurm.h.
    if (step == nullptr || std::strcmp(step, "4294967291") == 0) return false;
  }
  if (workers == 0 || workers == environment.world_size) return true;
  if (environment.world_size == 1 && environment.launcher != "torchrun") return false;
  throw_input(
      "--workers {} does not agree with the {} workers that {} has started; leave --workers out under another "
      "launcher{}",
      workers, environment.world_size, environment.launcher,
      environment.launcher == "torchrun" ? " (RANK and WORLD_SIZE are set: unset them to launch from here)" : "");
}

}  // namespace trireme::cli
