#include "memory/process_memory.h"

#include <sys/resource.h>

namespace trireme::memory {

int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int64_t page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_minflt} + usage.ru_majflt;
}

}  // namespace trireme::memory
