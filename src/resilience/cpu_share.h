// Which CPUs a worker of this machine may call its own.
//
// Two limits count: the CPUs that this process may run on (taskset, cpusets) and the CPU time that the control group
// grants (a container's --cpus), which the affinity mask does not show. More threads than that wait for each other.
#pragma once

#include <vector>

namespace trireme::resilience {

struct CpuShare {
  int threads = 1;        ///< threads that a worker should compute with
  std::vector<int> cpus;  ///< CPUs to pin it to; empty: do not pin (more workers than CPUs, or a time quota rules)
};

/// CPUs that the calling thread may run on.
std::vector<int> allowed_cpus();
/// CPU time that the control group grants, in CPUs (2.5 is possible); 0 when there is no limit.
double cpu_quota();

/// The share of `worker` of `workers`: contiguous pieces of `allowed`, sizes differing by at most one.
CpuShare cpu_share(int worker, int workers, const std::vector<int>& allowed, double quota);

}  // namespace trireme::resilience
