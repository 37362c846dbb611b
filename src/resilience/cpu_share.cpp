#include "resilience/cpu_share.h"

#include <algorithm>

namespace trireme::resilience {

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
