// One live run per folder: a lock on RUN/.lock.
//
// flock(2) holds it, so it dies with its holder, however that ends, and a stale file does not block. The file holds
// pid, host and start time as JSON for the message that a second run gets. Over NFS, Linux maps flock to byte-range
// locks that reach other hosts; a mount with local locks only (`local_lock=flock`, Lustre's `localflock`) does not see
// another host's run. So when the lock is free but its file names another host without a clean end, notice() warns.
#pragma once

#include <filesystem>
#include <string>

#include "base/file.h"

namespace trireme::checkpoint {

class RunLock {
 public:
  /// Takes the lock of a run folder, making the folder when there is none. Throws InputError, with pid and host of the
  /// holder, when a live run has it, and when the folder cannot be written.
  static RunLock acquire(const std::filesystem::path& run_folder);

  /// Empties the file (a clean end) and releases.
  ~RunLock();
  RunLock(RunLock&&) noexcept = default;
  RunLock& operator=(RunLock&&) = delete;

  /// What the user should know: the folder's last run was on another host and did not end cleanly, or the file system
  /// has no locks. Empty most of the time.
  const std::string& notice() const { return notice_; }

 private:
  RunLock(FileDescriptor file, std::string notice) : file_(std::move(file)), notice_(std::move(notice)) {}

  FileDescriptor file_;
  std::string notice_;
};

}  // namespace trireme::checkpoint
