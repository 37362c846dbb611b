// The time of day, for records that people read, and the clock that intervals are measured with.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

/// ISO 8601 in UTC, to the second: 2024-05-01T12:30:00Z.
std::string utc_now();

/// Nanoseconds on the monotonic clock, which all processes of a machine share.
int64_t steady_nanoseconds();

}  // namespace trireme
