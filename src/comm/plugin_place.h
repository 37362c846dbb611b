// Where a part of the program lies that is not linked into it: the plug-in of a backend, the supervisor.
#pragma once

#include <filesystem>

namespace trireme::comm {

struct PluginPlace {
  std::filesystem::path path;  ///< where it is, or was looked for first
  bool exists = false;
};

/// A file that environment `variable` (null: none) names; otherwise `file` beside the program, above its tests, or
/// where it is installed.
PluginPlace find_plugin(const char* variable, const char* file);

}  // namespace trireme::comm
