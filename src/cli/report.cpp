// `trireme report`: a page with the curves of one or several runs.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "observe/run_report.h"

namespace trireme::cli {
namespace {

struct Options {
  std::vector<std::string> runs;
  std::string out;
};

void run(const Options& options) {
  std::vector<observe::RunHistory> runs;
  std::vector<std::string> faults;
  for (const std::string& folder : options.runs) {
    try {
      runs.push_back(observe::read_history(folder));
    } catch (const InputError& error) {
      faults.push_back(fmt::format("{}: {}", folder, error.what()));
    }
  }
  if (!faults.empty()) throw InputError(faults);
  const std::filesystem::path out = !options.out.empty()      ? std::filesystem::path(options.out)
                                    : options.runs.size() > 1 ? std::filesystem::path("report.html")
                                                              : std::filesystem::path(options.runs[0]) / "report.html";
  write_file_durably(out, observe::render_report(runs));
  fmt::print("written: {}\n", out.string());
}

}  // namespace

void add_report(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("report", "Draw the curves of one or several runs as a page (HTML and SVG)");
  command->add_option("RUN", options->runs, "Run folders, with their metrics.jsonl")->required();
  command->add_option("--out", options->out, "The page; without it RUN/report.html, for several runs report.html here");
  command->footer("Examples:\n  trireme report runs/sotu\n  trireme report runs/a runs/b runs/c --out compare.html");
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
