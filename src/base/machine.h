// What the operating system lets this process use of the machine: processors, their time, memory.
//
// Three limits on processors count: those that are online, those that this process may run on (taskset, cpusets), and
// the time that control groups grant (a container's --cpus, a batch job's share), which the other two do not show.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme {

/// CPUs that the calling thread may run on.
std::vector<int> allowed_cpus();
/// CPU time that control groups grant, in CPUs (2.5 is possible); 0 when there is no limit.
double cpu_quota();

/// Cores of this machine, cut to the quota (rounded up).
int64_t machine_cores();
/// Cores that this process may use: allowed_cpus(), cut to the quota (rounded up).
int64_t usable_cores();
/// Physical memory, or the container's limit where that is less.
int64_t usable_memory_bytes();
/// Processes that were killed for want of memory, as this process's control group counts them; -1 when it does not
/// tell.
int64_t out_of_memory_kills();

/// Where control groups are found; tests give other places.
struct ControlGroups {
  std::filesystem::path mount = "/sys/fs/cgroup";
  std::filesystem::path self = "/proc/self/cgroup";
};
/// The smallest limit that control groups (version 2, else 1) set for this process, from its own group up to the root;
/// INT64_MAX when there is none.
int64_t memory_limit(const ControlGroups& groups);
/// The same for CPU time, in cores; infinity when there is none.
double cpu_limit(const ControlGroups& groups);

}  // namespace trireme
