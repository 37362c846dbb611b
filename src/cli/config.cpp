// `trireme config`: what can be set, and what a config file leads to. It only prints.
#include "config/config.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "config/render.h"
#include "train/link_speed.h"

namespace trireme::cli {
namespace {

struct Arguments {
  std::filesystem::path path;
  std::vector<std::string> overrides;
  int64_t workers = 1;
  bool workers_given = false;
  bool all = false;
  bool docs = false;
};

void run(const Arguments& arguments) {
  const int wanted =
      static_cast<int>(!arguments.path.empty()) + static_cast<int>(arguments.all) + static_cast<int>(arguments.docs);
  if (wanted != 1) throw InputError("give one of: a config file, --all, or --docs");
  if (arguments.path.empty() && (!arguments.overrides.empty() || arguments.workers_given)) {
    throw InputError("--set and --workers need a config file");
  }
  std::string text;
  if (arguments.all) {
    text = config::render_all();
  } else if (arguments.docs) {
    text = config::render_docs();
  } else {
    config::Config resolved = config::load_config(arguments.path, arguments.overrides);
    // Without a number of workers, what follows from it stays -1.
    if (arguments.workers_given) config::resolve_world(resolved, arguments.workers);
    static_cast<void>(train::link_speeds(resolved.comm.emulate, resolved.parallel));  // refuses unknown hardware
    text = config::to_toml(resolved);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

void add_config(CLI::App& app) {
  CLI::App* command = app.add_subcommand("config", "Print every option, or what a config file leads to");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("CONFIG", arguments->path, "Config file: check it and print the value of every option");
  command->add_option("--set", arguments->overrides, "Override an option: section.key=value; may be repeated")
      ->type_name("SECTION.KEY=VALUE")
      ->allow_extra_args(false);
  CLI::Option* workers =
      command->add_option("--workers", arguments->workers, "Resolve what follows from the number of workers");
  command->add_flag("--all", arguments->all, "Print a commented config file with every option and its default");
  command->add_flag("--docs", arguments->docs, "Print the page docs/configuration.md");
  command->footer("Options that a config file may hold (trireme config --all explains them):\n" +
                  config::render_summary());
  command->callback([arguments, workers] {
    arguments->workers_given = workers->count() > 0;
    run(*arguments);
  });
}

}  // namespace trireme::cli
