#include "resilience/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace trireme::resilience {

Terminal::Terminal(int fd, bool clear_line)
    : own_(reopen_terminal(fd)), fd_(own_ ? own_.get() : fd), clear_line_(clear_line) {}

void Terminal::show(std::string_view text) {
  if (closed_ || text.empty()) return;
  if (pending_.size() + text.size() > kMostPending) {
    dropped_ += text.size();
    pump();
    return;
  }
  if (dropped_ > 0) {
    pending_ += fmt::format("\n[{} bytes of output are not shown: the terminal did not take them; the log has them]\n",
                            dropped_);
    dropped_ = 0;
    at_line_start_ = true;
  }
  if (clear_line_ && at_line_start_) pending_ += "\r\x1b[K";
  pending_ += text;
  at_line_start_ = text.back() == '\n';
  pump();
}

void Terminal::pump() {
  while (!pending_.empty() && !closed_) {
    pollfd ready{fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0 || (ready.revents & (POLLOUT | POLLERR | POLLHUP)) == 0) return;
    // A pipe that is writable takes this much (PIPE_BUF) at once.
    const ssize_t written = write(fd_, pending_.data(), std::min<size_t>(pending_.size(), 4096));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return;
    if (written < 0) {
      closed_ = true;  // the reader has gone: train on, the log has everything
      pending_.clear();
      return;
    }
    pending_.erase(0, static_cast<size_t>(written));
  }
}

void Terminal::finish(int patience_ms) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::milliseconds patience(patience_ms);
  pump();
  for (auto last = Clock::now() + patience; !pending_.empty() && !closed_ && Clock::now() < last;) {
    const size_t before = pending_.size();
    pollfd ready{fd_, POLLOUT, 0};
    poll(&ready, 1, 20);
    pump();
    if (pending_.size() < before) last = Clock::now() + patience;
  }
}

}  // namespace trireme::resilience
