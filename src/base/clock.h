// The time of day, for records that people read.
#pragma once

#include <string>

namespace trireme {

/// ISO 8601 in UTC, to the second: 2024-05-01T12:30:00Z.
std::string utc_now();

}  // namespace trireme
