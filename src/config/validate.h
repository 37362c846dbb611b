// Checks over several options at once.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace trireme::config {

/// Faults between the values of a completed config. Keys in `bad` are already known to be wrong or missing, and no
/// check looks at them.
std::vector<std::string> cross_check(const Config& config, const std::set<std::string>& bad);

}  // namespace trireme::config
