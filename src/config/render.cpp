#include "config/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "config/option.h"

namespace trireme::config {
namespace {

constexpr size_t kWidth = 100;
constexpr double kNoticeable = 1 << 20;  ///< limits from here on are not worth a reader's time

/// Text in lines of at most kWidth, each after `prefix`.
std::string wrap(const std::string& text, const std::string& prefix) {
  std::string wrapped, line = prefix;
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find(' ', start), text.size());
    const std::string word = text.substr(start, end - start);
    if (line.size() + word.size() > kWidth && line.size() > prefix.size()) {
      wrapped += line.substr(0, line.size() - 1) + "\n";
      line = prefix;
    }
    line += word + " ";
    start = end + 1;
  }
  return wrapped + line.substr(0, line.size() - 1) + "\n";
}

/// Defaults, with the model of the example preset where defaults follow from it.
Config example() {
  Config config;
  static_cast<describe::ModelShape&>(config.model) = describe::preset("llama-7m").shape;
  config.run.dir = "runs/NAME";
  complete(config);
  return config;
}

std::string remark(const Option& option) {
  if (!option.example.empty()) return "";
  return option.follows.empty() ? "" : fmt::format(" Default: {}.", option.follows);
}

/// What is asked of a value: "An integer of at least 1." Nothing for a bool or a text, whose default says it.
std::string demand(const Option& option) {
  if (option.binding.kind == Kind::boolean || !option.only_advice.empty()) return "";
  if (option.choices.size() == 1) return fmt::format(" Only {} so far.", quote(option.choices.front()));
  Option shown = option;
  if (shown.high && shown.high->value >= kNoticeable) shown.high.reset();  // it only guards against overflow
  if (shown.choices.empty() && !shown.low && !shown.high) return "";
  std::string text = shown.expectation();
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return fmt::format(" {}.", text);
}

std::string full_help(const Option& option) {
  std::string text = option.help + demand(option) + remark(option);
  if (!option.only_advice.empty()) {
    text += fmt::format(" Only {} works so far: {}.", to_toml(option.binding.get(Config{})), option.only_advice);
  }
  return text;
}

std::string markdown_cell(const std::string& text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|') cell += '\\';
    cell += c;
  }
  return cell;
}

}  // namespace

std::string to_toml(const Config& config) {
  std::string text;
  for (const Section& section : sections()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    for (const Option& option : options()) {
      if (option.section() == section.name) {
        text += fmt::format("{} = {}\n", option.name(), to_toml(option.binding.get(config)));
      }
    }
  }
  return text;
}

std::string render_all() {
  const Config defaults = example();
  std::string text = wrap(
      "Every option of Trireme with its default. A key that is commented out follows from others unless it "
      "is given; its value here is what it would be.",
      "# ");
  for (const Section& section : sections()) {
    text += fmt::format("\n{}[{}]\n", wrap(section.help, "# "), section.name);
    for (const Option& option : options()) {
      if (option.section() != section.name) continue;
      text += fmt::format("\n{}", wrap(full_help(option), "# "));
      const std::string value = option.example.empty() ? to_toml(option.binding.get(defaults)) : option.example;
      text += fmt::format("{}{} = {}\n", option.follows.empty() ? "" : "# ", option.name(), value);
    }
  }
  return text;
}

std::string render_docs() {
  std::string text =
      "<!-- Written by `trireme config --docs`; change src/config/options.cpp instead of this page. -->\n"
      "# Configuration\n\n"
      "A run is one TOML file. `trireme train CONFIG --set section.key=value` changes single options;\n"
      "`trireme config CONFIG` prints all values that a file leads to, and `trireme config --all` a commented file "
      "with every\n"
      "option. An unknown key, a value of the wrong type and values that contradict each other are refused, all at "
      "once.\n\n"
      "Relative paths in `[data]` start at the folder of the config file, also those given with `--set`; `run.dir` "
      "and\n"
      "`checkpoint.load` start at the working folder.\n\n"
      "*Resume* says whether a run may go on from a checkpoint with another value. What changes the numbers that are\n"
      "learned may not change.\n";
  for (const Section& section : sections()) {
    text += fmt::format("\n## {}\n\n{}\n\n| key | default | resume | meaning |\n| --- | --- | --- | --- |\n",
                        section.name, section.help);
    for (const Option& option : options()) {
      if (option.section() != section.name) continue;
      std::string standard = fmt::format("`{}`", to_toml(option.binding.get(Config{})));
      if (!option.follows.empty()) standard = option.follows;
      if (!option.example.empty()) standard = fmt::format("required, e.g. `{}`", option.example);
      if (option.key == "model.preset") standard = "none";
      text += fmt::format("| `{}` | {} | {} | {} |\n", option.name(), markdown_cell(standard),
                          option.may_change ? "may change" : "fixed",
                          markdown_cell(option.follows.empty() ? full_help(option) : option.help + demand(option)));
    }
  }
  return text;
}

std::string render_summary() {
  std::string text;
  for (const Option& option : options()) {
    std::string standard;
    if (option.follows.empty() && option.example.empty()) {
      standard = fmt::format(" = {}", to_toml(option.binding.get(Config{})));
    }
    // The first part of the first sentence; a full stop within a number or a name ends nothing.
    size_t stop = option.help.find_first_of(".:;");
    while (stop != std::string::npos && stop + 1 < option.help.size() && option.help[stop + 1] != ' ')
      stop = option.help.find_first_of(".:;", stop + 1);
    text += fmt::format("  {:<36} {}\n", option.key + standard, option.help.substr(0, stop));
  }
  return text;
}

}  // namespace trireme::config
