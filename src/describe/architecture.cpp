#include "describe/architecture.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

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
