#include "config/named_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "config/option.h"

namespace trireme::config {
namespace {

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

bool is_name(std::string_view text) { return !text.empty() && std::ranges::all_of(text, is_name_character); }

/// A name made from what stands there, for a message.
std::string usable_name(std::string_view text) {
  std::string name;
  for (const char c : text) name += is_name_character(c) ? c : '_';
  return name.empty() ? "name" : name;
}

std::string fault_of(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    const std::string stem = std::filesystem::path(text).stem().string();
    return text.empty()
               ? "expected NAME=PATH, found an empty text"
               : fmt::format("expected NAME=PATH; write {}", quote(fmt::format("{}={}", usable_name(stem), text)));
  }
  const std::string_view name = text.substr(0, equals), path = text.substr(equals + 1);
  if (path.empty()) return "the path after '=' is missing";
  if (is_name(name)) return "";
  return fmt::format("a name has letters, digits, '_', '-' and '.', and is not empty; {} would do",
                     quote(fmt::format("{}={}", usable_name(name), path)));
}

}  // namespace

NamedPath to_named_path(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || !is_name(text.substr(0, equals))) return {"", text};
  return {std::string(text.substr(0, equals)), text.substr(equals + 1)};
}

std::string to_text(const NamedPath& named) {
  return named.name.empty() ? named.path.string() : fmt::format("{}={}", named.name, named.path.string());
}

std::vector<std::string> named_path_faults(std::string_view key, const std::vector<std::string>& texts) {
  std::vector<std::string> faults;
  std::set<std::string> names;
  for (const std::string& text : texts) {
    if (const std::string fault = fault_of(text); !fault.empty()) {
      faults.push_back(fmt::format("{} has {}: {}", key, quote(text), fault));
    } else if (const std::string name = to_named_path(text).name; !names.insert(name).second) {
      faults.push_back(fmt::format("{} has the name {} twice; each needs a name of its own", key, quote(name)));
    }
  }
  return faults;
}

}  // namespace trireme::config
