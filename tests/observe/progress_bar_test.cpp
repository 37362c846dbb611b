// The bar. Catches: a line that is wider than the terminal (it would wrap and scroll), 100% before the end, a bar where
// there is no terminal, too many updates, a bar that stays, a run that waits for a stopped terminal.
#include "observe/progress_bar.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cmath>

#include "base/file.h"
#include "pseudo_terminal.h"

namespace trireme::observe {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(RenderBar, Widths) {
  const struct {
    int width;
    const char* text;
  } rows[] = {
      {0, ""},
      {3, ""},
      {4, " 45%"},
      {20, " 45%  4m12s left"},
      {40, " 45%  loss 3.4521  4m12s left"},
      {200,
       "[==========================>                               ]  45%  step 900/2000  loss 3.4521  4m12s left"},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(render_bar(900, 2000, 3.4521, 252, row.width), row.text) << row.width;
  }
  const std::string eighty = render_bar(900, 2000, 3.4521, 252, 80);
  EXPECT_EQ(eighty.size(), 80u);
  EXPECT_THAT(eighty, StartsWith("[==="));
  EXPECT_THAT(eighty, EndsWith(" ]  45%  step 900/2000  loss 3.4521  4m12s left"));
}

TEST(RenderBar, NeverWiderThanAskedAndNeverDoneTooEarly) {
  for (int width = 0; width <= 210; ++width) {
    for (const int64_t step : {0, 1, 999, 1000, 1001}) {
      const std::string text = render_bar(step, 1000, step == 1 ? std::nan("") : 12.25, 3e5, width);
      EXPECT_LE(static_cast<int>(text.size()), width) << text;
      EXPECT_EQ(text.find("100%") != std::string::npos, step >= 1000 && width >= 4) << text << " at step " << step;
    }
  }
  EXPECT_THAT(render_bar(5, 0, 1, -1, 80), StartsWith("[>"));  // an unknown end divides by nothing
  EXPECT_THAT(render_bar(5, 10, std::nan(""), -1, 80), Not(HasSubstr("loss")));
}

TEST(ProgressBar, DrawsOnATerminalAloneAndErases) {
  PseudoTerminal terminal(50);
  ProgressBar bar(terminal.fd());
  ASSERT_TRUE(bar.active());
  bar.update(1, 10, 3.5, 9);
  const std::string drawn = terminal.read();
  EXPECT_THAT(drawn, StartsWith("\r"));
  EXPECT_THAT(drawn, EndsWith("\x1b[K"));
  EXPECT_LE(drawn.size() - 4, 49u) << drawn;
  bar.update(2, 10, 3.5, 8);
  EXPECT_EQ(terminal.read(), "") << "a second drawing within 100 ms";
  bar.update(10, 10, 3.5, 0);
  EXPECT_THAT(terminal.read(), HasSubstr("100%")) << "the last step is always drawn";
  bar.erase();
  EXPECT_EQ(terminal.read(), erase_line);
  bar.erase();
  EXPECT_EQ(terminal.read(), "");
  bar.update(3, 10, 3.5, 8);
  EXPECT_THAT(terminal.read(), HasSubstr("30%")) << "after erasing, it is drawn at once";
}

TEST(ProgressBar, FollowsTheWidth) {
  PseudoTerminal terminal(30);
  ProgressBar bar(terminal.fd());
  bar.update(1, 10, 3.5, 9);
  EXPECT_LE(terminal.read().size(), 30u + 4);
  terminal.set_width(120);
  bar.erase();
  terminal.read();
  bar.update(2, 10, 3.5, 9);
  EXPECT_GT(terminal.read().size(), 60u);
}

TEST(ProgressBar, NoTerminalNoBar) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const FileDescriptor reader(ends[0]), writer(ends[1]);
  for (const int fd : {-1, 999, writer.get()}) {
    ProgressBar bar(fd);
    EXPECT_FALSE(bar.active()) << fd;
    bar.update(1, 10, 1, 1);
    bar.erase();
  }
  fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  char byte = 0;
  EXPECT_EQ(read(reader.get(), &byte, 1), -1);
}

TEST(ProgressBar, ATerminalThatNobodyReadsIsSkipped) {
  PseudoTerminal terminal(80);
  ProgressBar bar(terminal.fd());
  for (int i = 0; i < 5000; ++i) bar.update(10, 10, 1, 1);  // 300 KB, which no terminal holds; must return
  EXPECT_EQ(fcntl(terminal.fd(), F_GETFL) & O_NONBLOCK, 0) << "the shell's terminal stays as it was";
}

TEST(ProgressBar, AStoppedTerminalIsSkipped) {
  PseudoTerminal terminal(80);
  ASSERT_EQ(tcflow(terminal.fd(), TCOOFF), 0);  // what Ctrl-S does
  {
    ProgressBar bar(terminal.fd());
    bar.update(10, 10, 1, 1);  // must return
  }
  ASSERT_EQ(tcflow(terminal.fd(), TCOON), 0);
  EXPECT_EQ(terminal.read(), "");
}

}  // namespace
}  // namespace trireme::observe
