#include "memory/process_memory.h"

#include <fstream>
#include <string>

namespace trireme::memory {

int64_t peak_resident_bytes() {
  // Not getrusage: its maximum is inherited over fork and exec, so a worker would report its launcher's.
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; std::getline(status, key)) {
    int64_t kilobytes = 0;
    if (key == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace trireme::memory
