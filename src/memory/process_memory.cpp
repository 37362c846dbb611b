#include "memory/process_memory.h"

#include <fstream>
#include <string>
#include <string_view>

namespace trireme::memory {
namespace {

// Not getrusage: its maximum is inherited over fork and exec, so a worker would report its launcher's.
int64_t status_bytes(std::string_view wanted) {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; std::getline(status, key)) {
    int64_t kilobytes = 0;
    if (key == wanted && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

int64_t peak_resident_bytes() { return status_bytes("VmHWM:"); }
ResidentBytes resident_bytes() { return {status_bytes("RssAnon:"), status_bytes("RssFile:")}; }

}  // namespace trireme::memory
