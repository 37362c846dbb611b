#include "comm/plugin_place.h"

#include <cstdlib>
#include <system_error>
#include <vector>

namespace trireme::comm {
namespace {

std::vector<std::filesystem::path> candidates(const char* variable, const char* file) {
  const char* given = variable == nullptr ? nullptr : std::getenv(variable);
  if (given != nullptr && *given != '\0') return {given};
  std::error_code ignored;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  return {folder / file, folder.parent_path() / file, folder.parent_path() / "lib" / "trireme" / file};
}

}  // namespace

PluginPlace find_plugin(const char* variable, const char* file) {
  const auto places = candidates(variable, file);
  for (const auto& path : places) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return {path, true};
  }
  return {places.front(), false};
}

}  // namespace trireme::comm
