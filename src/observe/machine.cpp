#include "observe/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

namespace trireme::observe {
namespace {

constexpr const char* kMount = "/sys/fs/cgroup";
constexpr const char* kSelf = "/proc/self/cgroup";

/// Calls `visit` with the file `name` of every group from this process's own up to the mount. A container often shows
/// its own group as the mount while /proc names the group by its path on the host, so a folder may be missing.
void for_each_group(const std::filesystem::path& mount, const std::filesystem::path& self, const char* name,
                    const std::function<void(std::ifstream&)>& visit) {
  std::filesystem::path group;
  std::ifstream groups(self);
  for (std::string line; std::getline(groups, line);) {
    // Version 2 is the line "0::/path"; lines of version 1 name a controller between the colons.
    if (line.starts_with("0::/")) group = line.substr(4);
  }
  while (true) {
    std::ifstream file(mount / group / name);
    if (file) visit(file);
    if (group.empty()) return;
    group = group.has_parent_path() ? group.parent_path() : std::filesystem::path();
  }
}

}  // namespace

int64_t cgroup_memory_limit(const std::filesystem::path& mount, const std::filesystem::path& self) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  for_each_group(mount, self, "memory.max", [&limit](std::ifstream& file) {
    int64_t bytes = 0;  // "max" is no number and leaves the limit alone
    if (file >> bytes && bytes > 0) limit = std::min(limit, bytes);
  });
  return limit;
}

double cgroup_cpu_limit(const std::filesystem::path& mount, const std::filesystem::path& self) {
  double limit = std::numeric_limits<double>::infinity();
  for_each_group(mount, self, "cpu.max", [&limit](std::ifstream& file) {
    double quota = 0, period = 0;
    if (file >> quota >> period && quota > 0 && period > 0) limit = std::min(limit, quota / period);
  });
  return limit;
}

int64_t usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const bool known = sched_getaffinity(0, sizeof mask, &mask) == 0;
  const double cores = known ? CPU_COUNT(&mask) : std::max(1U, std::thread::hardware_concurrency());
  return static_cast<int64_t>(std::ceil(std::min(cores, cgroup_cpu_limit(kMount, kSelf))));
}

int64_t machine_cores() {
  const auto cores = static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  return static_cast<int64_t>(std::ceil(std::min(cores, cgroup_cpu_limit(kMount, kSelf))));
}

int64_t usable_memory_bytes() {
  const int64_t physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  int64_t limit = cgroup_memory_limit(kMount, kSelf);
  std::ifstream version1("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  if (int64_t bytes = 0; version1 >> bytes && bytes > 0) limit = std::min(limit, bytes);
  return std::min(physical, limit);
}

}  // namespace trireme::observe
