// "NAME=PATH": how options and the command line name a data set or a file, so that metrics can tell several apart.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::config {

struct NamedPath {
  std::string name;  ///< empty: none was given
  std::filesystem::path path;
};

/// Splits at the first '='. Text whose part before it is no name is a path as a whole.
NamedPath to_named_path(std::string_view text);
std::string to_text(const NamedPath& named);

/// What is wrong with a list of "NAME=PATH", each fault with `key` and what would work: a name is missing or not made
/// of letters, digits, '_', '-' and '.', a path is missing, a name comes twice.
std::vector<std::string> named_path_faults(std::string_view key, const std::vector<std::string>& texts);

}  // namespace trireme::config
