// This machine's name, as messages and records tell it.
#pragma once

#include <string>

namespace trireme {

/// gethostname(2); "unknown host" when there is none.
std::string host_name();

}  // namespace trireme
