#include "observe/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "observe/format.h"

namespace trireme::observe {
namespace {

constexpr std::chrono::milliseconds kInterval{100};
constexpr int kNarrowestBar = 12;  // columns with the brackets; below that it tells nothing
constexpr int kWidestBar = 60;

/// Columns of the terminal; 80 when it does not say.
int terminal_width(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

bool draws(int fd) {
  if (fd < 0 || isatty(fd) == 0) return false;
  const char* term = std::getenv("TERM");
  return term == nullptr || std::string_view(term) != "dumb";
}

/// Drops the text when the terminal would make us wait.
bool write_if_ready(int fd, std::string_view text) {
  return ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

std::string graphic(double share, int width) {
  const int inner = width - 2;
  const int filled = std::clamp(static_cast<int>(share * inner), 0, inner);
  std::string text = "[" + std::string(static_cast<size_t>(filled), '=');
  if (filled < inner) text += ">" + std::string(static_cast<size_t>(inner - filled - 1), ' ');
  return text + "]";
}

}  // namespace

std::string render_bar(int64_t step, int64_t total_steps, double loss, double seconds_left, int width) {
  const double share =
      total_steps > 0 ? std::clamp(static_cast<double>(step) / static_cast<double>(total_steps), 0.0, 1.0) : 0.0;
  // Rounded down: 100% is shown at the end alone.
  const std::string done = fmt::format("{:3}%", static_cast<int>(std::floor(share * 100)));
  std::string left = seconds_left >= 0 ? "  " + short_duration(seconds_left) + " left" : "";
  std::string losses = std::isfinite(loss) ? fmt::format("  loss {:.4f}", loss) : "";
  std::string steps = fmt::format("  step {}/{}", step, total_steps);

  int room = width - static_cast<int>(done.size());
  if (room < 0) return "";
  for (std::string* part : {&left, &losses, &steps}) {
    if (static_cast<int>(part->size()) > room) part->clear();
    room -= static_cast<int>(part->size());
  }
  const int bar = std::min(room - 1, kWidestBar);
  return (bar >= kNarrowestBar ? graphic(share, bar) + " " : "") + done + steps + losses + left;
}

ProgressBar::ProgressBar(int fd) {
  if (draws(fd)) fd_ = reopen_terminal(fd);
}

void ProgressBar::update(int64_t step, int64_t total_steps, double loss, double seconds_left) {
  if (!active()) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_ < kInterval && step < total_steps) return;
  // One column less than there is: a character in the last one makes some terminals wrap.
  const std::string text = render_bar(step, total_steps, loss, seconds_left, terminal_width(fd_.get()) - 1);
  if (write_if_ready(fd_.get(), "\r" + text + "\x1b[K")) drawn_ = true;
  last_ = now;
}

void ProgressBar::erase() {
  if (!active() || !drawn_) return;
  if (write_if_ready(fd_.get(), erase_line)) drawn_ = false;
}

}  // namespace trireme::observe
