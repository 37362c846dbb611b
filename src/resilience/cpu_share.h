// Which CPUs a worker of this machine may call its own.
//
// More threads than base/machine.h allows would wait for each other.
#pragma once

#include <vector>

namespace trireme::resilience {

struct CpuShare {
  int threads = 1;        ///< threads that a worker should compute with
  std::vector<int> cpus;  ///< CPUs to pin it to; empty: do not pin (more workers than CPUs, or a time quota rules)
};

/// The share of `worker` of `workers`: contiguous pieces of `allowed` (allowed_cpus()), sizes differing by at
/// most one; `quota` is cpu_quota().
CpuShare cpu_share(int worker, int workers, const std::vector<int>& allowed, double quota);

}  // namespace trireme::resilience
