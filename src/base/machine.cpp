#include "base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// Calls `visit` with the folder of every group from this process's own up to the mount. A container often shows its
/// own group as the mount while /proc names the group by its path on the host, so a folder may be missing.
void for_each_group(const ControlGroups& groups, const std::function<void(const fs::path&)>& visit) {
  fs::path group;
  std::ifstream lines(groups.self);
  for (std::string line; std::getline(lines, line);) {
    // Version 2 is the line "0::/path"; lines of version 1 name a controller between the colons.
    if (line.starts_with("0::/")) group = line.substr(4);
  }
  while (true) {
    visit(groups.mount / group);
    if (group.empty()) return;
    group = group.has_parent_path() ? group.parent_path() : fs::path();
  }
}

/// A file's first number; nothing for a missing file, and for "max".
bool read_number(const fs::path& path, double& number) { return static_cast<bool>(std::ifstream(path) >> number); }

}  // namespace

std::vector<int> allowed_cpus() {
  // A fixed cpu_set_t ends at CPU 1023; larger machines answer EINVAL, so ask again with more room.
  for (int room = 1024; room <= 1 << 20; room *= 4) {
    cpu_set_t* set = CPU_ALLOC(room);
    const size_t bytes = CPU_ALLOC_SIZE(room);
    std::vector<int> cpus;
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (int cpu = 0; cpu < room; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
    if (!cpus.empty()) return cpus;
  }
  return {0};
}

int64_t memory_limit(const ControlGroups& groups) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  const auto take = [&](const fs::path& path) {
    // Version 1 writes "no limit" as a number near 2^63.
    if (double bytes = 0; read_number(path, bytes) && bytes > 0 && bytes < 9e18)
      limit = std::min(limit, static_cast<int64_t>(bytes));
  };
  for_each_group(groups, [&](const fs::path& group) { take(group / "memory.max"); });
  take(groups.mount / "memory" / "memory.limit_in_bytes");
  return limit;
}

double cpu_limit(const ControlGroups& groups) {
  double limit = std::numeric_limits<double>::infinity();
  for_each_group(groups, [&](const fs::path& group) {
    std::ifstream file(group / "cpu.max");
    double quota = 0, period = 0;
    if (file >> quota >> period && quota > 0 && period > 0) limit = std::min(limit, quota / period);
  });
  double quota = 0, period = 0;
  const fs::path version1 = groups.mount / "cpu";
  if (read_number(version1 / "cpu.cfs_quota_us", quota) && read_number(version1 / "cpu.cfs_period_us", period) &&
      quota > 0 && period > 0)
    limit = std::min(limit, quota / period);
  return limit;
}

double cpu_quota() {
  const double limit = cpu_limit({});
  return std::isfinite(limit) ? limit : 0;
}

int64_t usable_cores() {
  return static_cast<int64_t>(std::ceil(std::min(static_cast<double>(allowed_cpus().size()), cpu_limit({}))));
}

int64_t machine_cores() {
  const auto cores = static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  return static_cast<int64_t>(std::ceil(std::min(cores, cpu_limit({}))));
}

int64_t usable_memory_bytes() {
  const int64_t physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::min(physical, memory_limit({}));
}

int64_t out_of_memory_kills() {
  // A group counts those of the groups below it, so the nearest file that is there tells.
  int64_t found = -1;
  for_each_group({}, [&](const fs::path& group) {
    std::ifstream file(group / "memory.events");
    std::string key;
    for (int64_t count = 0; found < 0 && file >> key >> count;)
      if (key == "oom_kill") found = count;
  });
  return found;
}

}  // namespace trireme
