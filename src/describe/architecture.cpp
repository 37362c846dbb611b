#include "describe/architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace trireme::describe {
namespace {

struct Table {
  std::vector<Architecture> rows;
  bool sealed = false;
};

// Made on first use, so that a static object of another file may register.
Table& table() {
  static Table table;
  return table;
}

}  // namespace

void register_architecture(Architecture architecture) {
  const std::string& name = architecture.name;
  if (name.empty()) throw_internal("an architecture needs a name");
  if (std::ranges::find(kBuiltInArchitectures, name) != kBuiltInArchitectures.end())
    throw_internal("the architecture \"{}\" is built in; take another name", name);
  if (registered_architecture(name) != nullptr) throw_internal("the architecture \"{}\" is registered already", name);
  if (table().sealed)
    throw_internal("the architecture \"{}\" is registered too late; do it before trireme::cli::main", name);
  table().rows.push_back(std::move(architecture));
}

const Architecture* registered_architecture(std::string_view name) {
  for (const Architecture& row : table().rows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

double model_option(const ModelShape& shape, std::string_view name) {
  const Architecture* own = registered_architecture(shape.architecture);
  if (own == nullptr)
    throw_internal("{} has no option {}: it is built in, or not registered", shape.architecture, name);
  const auto option = std::ranges::find(own->options, name, &ModelOption::name);
  if (option == own->options.end()) throw_internal("{} was registered without an option {}", shape.architecture, name);
  for (const std::string& text : shape.options) {
    const NamedNumber given = to_named_number(text);
    if (given.name != name) continue;
    if (!given.number) throw_input("model.options: \"{}\" is not {}=number", text, name);
    return *given.number;
  }
  return option->standard;
}

void pin_options(ModelShape& shape) {
  const Architecture* own = registered_architecture(shape.architecture);
  if (own == nullptr || !option_faults(shape).empty()) return;
  std::vector<std::string> pinned;
  for (const ModelOption& option : own->options)
    pinned.push_back(fmt::format("{}={}", option.name, model_option(shape, option.name)));
  shape.options = std::move(pinned);
}

std::vector<std::string> option_faults(const ModelShape& shape) {
  if (shape.options.empty()) return {};
  const Architecture* own = registered_architecture(shape.architecture);
  std::vector<std::string> names, seen, faults;
  if (own != nullptr) {
    for (const ModelOption& option : own->options) names.push_back(option.name);
  }
  if (names.empty()) return {fmt::format("model.options: {} has no options of its own", shape.architecture)};
  for (const std::string& text : shape.options) {
    const NamedNumber given = to_named_number(text);
    const std::string name(given.name);
    if (std::ranges::find(names, name) == names.end()) {
      const std::string near = nearest(name, names);
      faults.push_back(fmt::format(
          "model.options: {} has no option \"{}\"; {}", shape.architecture, name,
          near.empty() ? fmt::format("it has {}", fmt::join(names, ", ")) : fmt::format("did you mean {}?", near)));
    } else if (!given.number) {
      faults.push_back(fmt::format("model.options: \"{}\": expected {}=number, such as {}={}", text, name, name,
                                   std::ranges::find(own->options, name, &ModelOption::name)->standard));
    } else if (std::ranges::find(seen, name) != seen.end()) {
      faults.push_back(fmt::format("model.options: {} is given twice", name));
    }
    seen.push_back(name);
  }
  return faults;
}

std::span<const Architecture> registered_architectures() {
  table().sealed = true;
  return table().rows;
}

std::vector<std::string> architecture_names() {
  std::vector<std::string> names(kBuiltInArchitectures.begin(), kBuiltInArchitectures.end());
  for (const Architecture& row : registered_architectures()) names.push_back(row.name);
  return names;
}

}  // namespace trireme::describe
