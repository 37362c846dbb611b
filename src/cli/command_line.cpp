#include "cli/main.h"

#include <fmt/format.h>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/subnormal.h"
#include "cli/commands.h"
#include "comm/launch_environment.h"
#include "memory/caching_allocator.h"

namespace trireme::cli {
namespace {

int fail(ExitCode code, const std::string& message) {
  // One write: the lines of several processes on one terminal must not mix.
  const std::string text = "trireme: error: " + message + (message.ends_with('\n') ? "" : "\n");
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  return static_cast<int>(code);
}

/// As the user calls it: a program with a model of its own has another name.
std::string name_of_program(int argc, char** argv) {
  const std::string name = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "";
  // A worker is started as /proc/self/exe.
  return name.empty() || name == "exe" ? "trireme" : name;
}

void add_commands(CLI::App& app) {
  add_train(app);
  add_launch(app);
  add_sbatch(app);
  add_data(app);
  add_generate(app);
  add_eval(app);
  add_convert(app);
  add_inspect(app);
  add_report(app);
  add_plan(app);
  add_bench(app);
  add_config(app);
}

/// The word that is not known and the nearest one that is, for the deepest command that was understood; "" when
/// something else is wrong. `depth`: how many words of the command line were commands.
std::string unknown_word(const CLI::App& command, const std::string& name, int depth, int argc, char** argv) {
  std::vector<std::string> commands;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(sub->get_name());
  }
  if (!commands.empty() && (depth >= argc || argv[depth][0] != '-')) {
    const std::string near = depth < argc ? nearest(argv[depth], commands) : "";
    if (!near.empty())
      return fmt::format("there is no command `{0} {1}`; did you mean `{0} {2}`?", name, argv[depth], near);
    const std::string list = CLI::detail::join(commands, ", ");
    if (depth < argc) return fmt::format("there is no command `{} {}`; there are {}", name, argv[depth], list);
    return fmt::format("`{}` needs a command: {}", name, list);
  }
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& text : option->get_lnames()) options.push_back("--" + text);
  }
  for (int i = depth; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (!word.starts_with("--") || std::ranges::find(options, word) != options.end()) continue;
    const std::string near = nearest(word, options);
    return fmt::format("`{}` has no option {}{}", name, word, near.empty() ? "" : "; did you mean " + near + "?");
  }
  return "";
}

/// What the user typed does not parse: say what, and where help is.
int fail_to_parse(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  std::string name = app.get_name();
  int depth = 1;
  const CLI::App* deepest = &app;
  for (auto chosen = deepest->get_subcommands(); !chosen.empty(); chosen = deepest->get_subcommands()) {
    deepest = chosen.front();
    name += " " + deepest->get_name();
    ++depth;
  }
  std::string message = unknown_word(*deepest, name, depth, argc, argv);
  if (message.empty()) message = error.what();
  return fail(ExitCode::bad_input, message + "\nTry `" + name + " --help`.");
}

bool is_launched() {
  try {
    return comm::detect_environment().launcher != "none";
  } catch (const Error&) {  // for the command to tell
    return true;
  }
}

// An idle thread of OpenMP's team spins for milliseconds by default, and where another process wants its processor a
// step takes many times as long: a thousand turns, some 50 us, bridge the pauses within a step. libgomp reads it when
// it is loaded, so the program starts itself again; its workers inherit it.
void let_idle_threads_sleep(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  const bool trains = command == "train" || command == "launch";
  const bool computes = trains || command == "eval" || command == "generate" || command == "bench";
  if (!computes || ::getenv("GOMP_SPINCOUNT") != nullptr || ::getenv("OMP_WAIT_POLICY") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "1000", 1);
  if (trains && !is_launched()) return;  // only its workers compute
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (!error) ::execv(self.c_str(), argv);
  // It cannot be: then as it is.
}

}  // namespace

int main(int argc, char** argv) {
  let_idle_threads_sleep(argc, argv);
  flush_subnormals();
  memory::release_malloc();  // LibTorch's registration of its operators leaves 40 MiB behind
  CLI::App app{"Trireme trains large language models."};
  app.name(name_of_program(argc, argv));
  app.set_version_flag("--version", "trireme " TRIREME_VERSION);
  app.set_help_all_flag("--help-all", "Help of every command");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  trireme train configs/tiny.toml                 seconds, needs no download\n"
      "  trireme train configs/sotu.toml --workers 2     two workers on this machine\n"
      "  trireme config --all                            every option, with what it means\n"
      "\n"
      "Exit codes: 0 done, 1 internal error, 2 bad input, 3 a worker failed, 4 a plan does not fit,\n"
      "5 stopped by a signal or a limit after saving.");
  try {
    add_commands(app);
    try {
      app.parse(argc, argv);
    } catch (const CLI::RuntimeError& ended) {
      return ended.get_exit_code();
    } catch (const CLI::ParseError& error) {
      // Help and version travel as exceptions with code 0.
      if (error.get_exit_code() == 0) return app.exit(error);
      return fail_to_parse(app, error, argc, argv);
    }
    // A full disk or a closed pipe must not look like success.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw_errno("write", "standard output", errno);
    return static_cast<int>(ExitCode::done);
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::internal, "out of memory");
  } catch (const std::exception& error) {
    return fail(ExitCode::internal, error.what());
  }
}

}  // namespace trireme::cli
