#include "checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/host.h"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

/// What the file says about its holder. Anything unreadable counts as empty: the lock decides, the content only
/// informs.
json content_of(const std::filesystem::path& path) {
  try {
    json content = json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
    return content.is_object() ? content : json::object();
  } catch (const Error&) {
    return json::object();
  }
}

std::string text_of(const json& content, const char* key) {
  if (!content.contains(key)) return "unknown";
  return content[key].is_string() ? content[key].get<std::string>() : content[key].dump();
}

}  // namespace

RunLock RunLock::acquire(const std::filesystem::path& run_folder) {
  make_directories(run_folder);
  const std::filesystem::path path = run_folder / ".lock";
  FileDescriptor file = open_file(path, O_RDWR | O_CREAT, "write");
  std::string notice;
  int result;
  do result = ::flock(file.get(), LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  const int error = result == 0 ? 0 : errno;
  const json last = content_of(path);
  if (error == EWOULDBLOCK) {
    throw_input(
        "run folder {} is in use by a live run: process {} on host {}, since {}; wait for it, stop it, or choose "
        "another run.dir",
        run_folder.string(), text_of(last, "pid"), text_of(last, "host"), text_of(last, "since"));
  }
  if (error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP) {
    notice = fmt::format("the file system of {} has no locks: make sure that no second run uses the folder",
                         run_folder.string());
  } else if (error != 0) {
    throw_errno("lock", path.string(), error);
  } else if (last.contains("host") && text_of(last, "host") != host_name()) {
    notice = fmt::format(
        "the last run in {} was process {} on host {}, since {}, and did not end cleanly; if it still runs there, stop "
        "one of the two",
        run_folder.string(), text_of(last, "pid"), text_of(last, "host"), text_of(last, "since"));
  }
  const json mine = {{"pid", ::getpid()}, {"host", host_name()}, {"since", utc_now()}};
  if (::ftruncate(file.get(), 0) != 0) throw_errno("write", path.string(), errno);
  write_all(file.get(), mine.dump() + "\n", path);
  return RunLock(std::move(file), std::move(notice));
}

RunLock::~RunLock() {
  // The file stays: removing it would let a third process lock a new file of that name beside a second that waits on
  // this.
  if (file_) [[maybe_unused]]
    const int ignored = ::ftruncate(file_.get(), 0);
}

}  // namespace trireme::checkpoint
