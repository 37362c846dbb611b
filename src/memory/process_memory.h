// What the operating system says this process uses.
#pragma once

#include <cstdint>

namespace trireme::memory {

/// Highest resident set size of this process in bytes (VmHWM): tensors, shared memory that it touched, and libraries.
int64_t peak_resident_bytes();
/// Resident set size now, in bytes (VmRSS).
int64_t resident_bytes();

}  // namespace trireme::memory
