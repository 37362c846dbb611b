// What the operating system says of this machine, as far as this process may use it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme::observe {

/// Cores of this machine, cut to the container's CPU quota (rounded up).
int64_t machine_cores();
/// Cores of the affinity mask, cut to the container's CPU quota (rounded up).
int64_t usable_cores();
/// Physical memory, or the container's limit where that is less.
int64_t usable_memory_bytes();

/// The smallest limit that control groups (version 2) set for this process, from its own group up to the root;
/// INT64_MAX when there is none. `mount` is /sys/fs/cgroup, `self` is /proc/self/cgroup; tests give others.
int64_t cgroup_memory_limit(const std::filesystem::path& mount, const std::filesystem::path& self);
/// The same for the CPU quota, in cores; infinity when there is none.
double cgroup_cpu_limit(const std::filesystem::path& mount, const std::filesystem::path& self);

}  // namespace trireme::observe
