// The launcher's view of rank 0's output: everything goes to rank 0's log file, and is shown on the terminal as far as
// the terminal takes it.
//
// A terminal that is paused (Ctrl-S) or a pager that does not read must not stop the training, nor the watch over the
// workers: output waits in a bounded buffer, and what does not fit is dropped with a line that says so (the log has
// it).
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"

namespace trireme::resilience {

class Terminal {
 public:
  /// Shows on descriptor `fd`. `clear_line`: a progress bar is drawn on it by someone else; it is wiped before a line.
  Terminal(int fd, bool clear_line);

  /// Takes text of the worker; writes as much as can be written without waiting.
  void show(std::string_view text);
  /// Writes what can be written without waiting.
  void pump();
  /// True when there is text that waits for the terminal.
  bool waiting() const { return !pending_.empty(); }
  int fd() const { return fd_; }
  /// Writes what waits; gives up when nothing could be written for `patience_ms`.
  void finish(int patience_ms);

 private:
  static constexpr size_t kMostPending = 1 << 20;

  FileDescriptor own_;  ///< of a terminal
  int fd_;
  bool clear_line_;
  bool at_line_start_ = true;
  bool closed_ = false;
  size_t dropped_ = 0;
  std::string pending_;
};

}  // namespace trireme::resilience
