// A progress bar: one line at the bottom of a terminal, redrawn in place with a carriage return.
//
// At most 10 updates a second; the terminal's width is asked for at each. A terminal that takes no bytes (the user
// pressed Ctrl-S) is skipped, for a run must never wait for its decoration.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"

namespace trireme::observe {

/// Returns the cursor to the first column and erases the line.
inline constexpr std::string_view erase_line = "\r\x1b[K";

/// What stands in a bar of `width` columns (never more, so that it does not wrap); one that is too narrow for the bar
/// keeps what matters most: the percentage, then the time left, then the loss.
std::string render_bar(int64_t step, int64_t total_steps, double loss, double seconds_left, int width);

class ProgressBar {
 public:
  /// `fd` is not owned; -1, or what is no terminal: there is no bar, and every call does nothing.
  explicit ProgressBar(int fd);
  ProgressBar(ProgressBar&&) noexcept = default;
  ProgressBar& operator=(ProgressBar&&) = delete;
  ~ProgressBar() { erase(); }

  bool active() const { return static_cast<bool>(fd_); }
  /// Draws unless the last drawing is less than 100 ms ago; the last step is always drawn.
  void update(int64_t step, int64_t total_steps, double loss, double seconds_left);
  /// Erases what is drawn; the next update draws again at once.
  void erase();

 private:
  FileDescriptor fd_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace trireme::observe
