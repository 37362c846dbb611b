// A terminal for tests: what is written to fd() comes out of read(), unchanged.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "base/file.h"

namespace trireme::observe {

class PseudoTerminal {
 public:
  explicit PseudoTerminal(int columns) : master_(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    if (!master_ || grantpt(master_.get()) != 0 || unlockpt(master_.get()) != 0) throw std::runtime_error("no pty");
    terminal_.reset(open(ptsname(master_.get()), O_RDWR | O_NOCTTY));
    termios settings{};
    tcgetattr(terminal_.get(), &settings);
    cfmakeraw(&settings);
    tcsetattr(terminal_.get(), TCSANOW, &settings);
    set_width(columns);
    setenv("TERM", "xterm", 1);
  }
  int fd() const { return terminal_.get(); }
  void set_width(int columns) {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    ioctl(terminal_.get(), TIOCSWINSZ, &size);
  }
  /// What has been written since the last call; does not wait.
  std::string read() {
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(master_.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  FileDescriptor master_, terminal_;
};

}  // namespace trireme::observe
