#include "comm/process_state.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "base/hash.h"
#include "base/host.h"

namespace trireme::comm {
namespace {

struct Stat {
  char state = '?';
  uint64_t start_time = 0;
};

// No exceptions and no allocation: this runs while something has already gone wrong.
std::optional<Stat> read_stat(int pid, bool& gone) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  gone = fd < 0 && (errno == ENOENT || errno == ESRCH);
  if (fd < 0) return std::nullopt;
  char text[1024];
  const ssize_t length = ::read(fd, text, sizeof text - 1);
  gone = length < 0 && errno == ESRCH;
  ::close(fd);
  if (length <= 0) return std::nullopt;
  text[length] = '\0';
  // The name, field 2, may hold blanks and parentheses: count from the last one.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] == '\0') return std::nullopt;
  at += 2;
  Stat stat;
  stat.state = *at;
  for (int field = 3; field < 22; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) return std::nullopt;
    ++at;
  }
  stat.start_time = std::strtoull(at, nullptr, 10);
  return stat;
}

uint64_t pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace

ProcessId this_process() {
  ProcessId process;
  process.pid = ::getpid();
  process.pid_namespace = pid_namespace();
  bool gone = false;
  if (const auto stat = read_stat(process.pid, gone)) process.start_time = stat->start_time;
  return process;
}

uint64_t this_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!std::getline(file, id)) id = host_name();
  return hash64(id, 0);
}

ProcessState state_of(const ProcessId& process) {
  if (process.pid == 0 || process.pid_namespace != pid_namespace()) return ProcessState::unknown;
  bool gone = false;
  const auto stat = read_stat(process.pid, gone);
  if (gone) return ProcessState::dead;
  if (!stat) return ProcessState::unknown;
  if (stat->start_time != process.start_time) return ProcessState::dead;
  switch (stat->state) {
    case 'Z':
    case 'X':
    case 'x':
      return ProcessState::dead;
    case 'T':
    case 't':
      return ProcessState::stopped;
    default:
      return ProcessState::alive;
  }
}

}  // namespace trireme::comm
