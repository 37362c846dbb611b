// What the operating system says this process uses.
#pragma once

#include <cstdint>

namespace trireme::memory {

/// Highest resident set size of this process in bytes (VmHWM): tensors, shared memory that it touched, and libraries.
int64_t peak_resident_bytes();
/// Resident now, without memory that processes share (RssAnon, RssFile).
struct ResidentBytes {
  int64_t anonymous = 0, mapped = 0;
};
ResidentBytes resident_bytes();

}  // namespace trireme::memory
