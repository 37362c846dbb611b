// Ranks as processes: the test's own binary, executed again with `--rank` and arguments. Never forked, as the trainer's
// workers never are.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "comm/arena.h"

extern char** environ;

namespace trireme::comm::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Rank {
 public:
  explicit Rank(std::vector<std::string> args) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("make", "a pipe", errno);
    output_ = FileDescriptor(ends[0]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    args.insert(args.begin(), {"/proc/self/exe", "--rank"});
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const int failed = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (failed != 0) throw_errno("start", "a rank", failed);
  }
  ~Rank() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  Rank(Rank&& other) noexcept : pid_(std::exchange(other.pid_, 0)), output_(std::move(other.output_)) {}

  int pid() const { return pid_; }
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);  // 0 would be this whole process group
  }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return status;
  }
  /// The next line, or what there is of it when the time is over.
  std::string line(milliseconds limit) const {
    std::string text;
    const auto end = Clock::now() + limit;
    for (;;) {
      pollfd entry{output_.get(), POLLIN, 0};
      const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now()).count();
      if (left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) <= 0) return text + " (no line in time)";
      char c = 0;
      if (::read(output_.get(), &c, 1) != 1) return text + " (end)";
      if (c == '\n') return text;
      text += c;
    }
  }

 private:
  int pid_ = 0;
  FileDescriptor output_;
};

inline void expect_nothing_left(const std::string& address) {
  EXPECT_EQ(read_file("/proc/net/unix").find(address), std::string::npos);
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    EXPECT_EQ(file.path().filename().string().find("trireme"), std::string::npos) << file.path();
  }
}

/// The arena of `rank` in a job whose ranks meet at `address`.
inline std::shared_ptr<Arena> meet(const std::string& address, int64_t rank, int64_t ranks) {
  const auto deadline = Clock::now() + seconds(60);
  if (rank != 0) return Arena::attach(address, rank, deadline);
  const auto arena = Arena::create(ranks);
  const FileDescriptor door = Arena::listen(address);
  arena->hand_out(door, deadline);
  return arena;
}

}  // namespace trireme::comm::testing
