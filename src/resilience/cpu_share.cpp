#include "resilience/cpu_share.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace trireme::resilience {

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

double cpu_quota() {
  // Version 2: "max 100000" or "250000 100000". The folder is the container's own group, seen as the root from inside.
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file) {
    std::string quota;
    double period = 0;
    if (file >> quota >> period && quota != "max" && period > 0) return std::strtod(quota.c_str(), nullptr) / period;
    return 0;
  }
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

CpuShare cpu_share(int worker, int workers, const std::vector<int>& allowed, double quota) {
  const int count = static_cast<int>(allowed.size());
  CpuShare share;
  if (quota > 0 && quota < count) {
    // The quota may be spent on any CPU: pinning would only take the choice from the kernel.
    share.threads = std::max(1, static_cast<int>(quota / workers));
    return share;
  }
  if (workers > count) return share;
  const int begin = static_cast<int>(static_cast<int64_t>(worker) * count / workers);
  const int end = static_cast<int>(static_cast<int64_t>(worker + 1) * count / workers);
  share.cpus.assign(allowed.begin() + begin, allowed.begin() + end);
  // Equal threads everywhere: results follow the size of the team, so one that is larger would differ from its peers.
  share.threads = count / workers;
  return share;
}

}  // namespace trireme::resilience
