// Whether another process on this machine still runs: what turns "rank 3 is late" into "rank 3 is dead".
//
// A pid alone is not enough: it is reused. The start time (field 22 of /proc/PID/stat, proc(5)) tells two lives apart,
// and the pid namespace tells whether the number means anything here.
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::comm {

struct ProcessId {
  int32_t pid = 0;
  uint64_t start_time = 0;     ///< clock ticks since boot
  uint64_t pid_namespace = 0;  ///< inode of /proc/self/ns/pid
};

enum class ProcessState {
  alive,
  stopped,  ///< by a signal or a debugger: state T or t
  dead,     ///< gone, a zombie, or its pid belongs to another process now
  unknown,  ///< in another pid namespace, or /proc cannot be read
};

ProcessId this_process();
/// Of this machine: two containers on it have two host names, but one boot id.
uint64_t this_machine();
ProcessState state_of(const ProcessId& process);

}  // namespace trireme::comm
