// Lines for a person. Catches: columns that move with the numbers, a bar mixed into lines, a silent
// console that speaks.
#include "observe/console.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "base/file.h"
#include "pseudo_terminal.h"

namespace trireme::observe {
namespace {

using testing::HasSubstr;
using testing::Not;

StepRecord usual() {
  StepRecord record;
  record.step = 120;
  record.loss = 3.45211;
  record.grad_norm = 0.8149;
  record.lr = 2e-3;
  record.tokens_per_second = 41234;
  record.mfu = 0.381;
  record.peak_memory_bytes = 1288490189;
  record.seconds_left = 252;
  return record;
}

TEST(StepLine, Text) {
  EXPECT_EQ(step_line(usual(), 2000),
            "step  120/2000  loss  3.4521  grad norm   0.815  lr 2.00e-03   41.2k tok/s  MFU  38.1%  mem 1.20 GiB  ETA "
            "4m12s");
}

TEST(StepLine, ColumnsStandInLine) {
  const size_t eta = step_line(usual(), 2000).find("ETA");
  const double infinity = std::numeric_limits<double>::infinity();
  const struct {
    const char* name;
    int64_t step;
    double loss, norm, lr, rate, mfu;
    int64_t memory;
  } rows[] = {{"small", 1, 0.0001, 0.0001, 1e-9, 0, 0.001, 0},
              {"large", 2000, 11.5, 123456, 1e-2, 1.25e9, 1, int64_t{999} << 30},
              {"huge loss", 7, 1e9, 1e30, 1.0, 999999, 1.25, 1023},
              {"not numbers", 8, std::nan(""), infinity, 0, std::nan(""), std::nan(""), 1 << 20}};
  for (const auto& row : rows) {
    StepRecord record = usual();
    record.step = row.step;
    record.loss = row.loss;
    record.grad_norm = row.norm;
    record.lr = row.lr;
    record.tokens_per_second = row.rate;
    record.mfu = row.mfu;
    record.peak_memory_bytes = row.memory;
    EXPECT_EQ(step_line(record, 2000).find("ETA"), eta) << row.name << ": " << step_line(record, 2000);
  }
}

TEST(StepLine, UnknownTimeLeftIsLeftOut) {
  StepRecord record = usual();
  record.seconds_left = -1;
  EXPECT_THAT(step_line(record, 2000), Not(HasSubstr("ETA")));
}

TEST(OtherLines, Text) {
  StepRecord record = usual();
  record.grad_norm = std::nan("");
  record.skipped_parameter = "blocks.3.attention.q.weight";
  EXPECT_EQ(skipped_line(record, 2000),
            "step  120/2000  skipped: gradient norm NaN, first in blocks.3.attention.q.weight; no weight was changed "
            "(loss 3.4521)");
  EvalRecord eval{.step = 120,
                  .eval_loss = 3.211,
                  .eval_bits_per_byte = 1.84231,
                  .tokens = 120000,
                  .bytes = 524288,
                  .seconds = 3.14};
  EXPECT_EQ(evaluation_line(eval, 2000),
            "eval  120/2000  loss  3.2110  1.8423 bits/byte  held-out: 120,000 tokens, 512 KiB of text, 3.1s");
  eval.set = "wiki";
  EXPECT_EQ(evaluation_line(eval, 2000),
            "eval  120/2000  loss  3.2110  1.8423 bits/byte  wiki: 120,000 tokens, 512 KiB of text, 3.1s");
  const ChoiceRecord questions{
      .step = 120, .suite = "arc", .acc = 0.25, .acc_norm = 1.0 / 3, .questions = 1200, .seconds = 3.14};
  EXPECT_EQ(choices_line(questions, 2000),
            "eval  120/2000  acc  0.2500   acc_norm 0.3333   arc: 1,200 questions, 3.1s");
}

/// A pipe as the console's output.
struct Pipe {
  FileDescriptor reader, writer;
  Pipe() {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    reader.reset(ends[0]);
    writer.reset(ends[1]);
    fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  }
  std::string read() {
    std::string text(65536, '\0');
    const ssize_t got = ::read(reader.get(), text.data(), text.size());
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }
};

TEST(Console, WritesEachLineAtOnce) {
  Pipe pipe;
  Console console({.output_fd = pipe.writer.get(), .total_steps = 2000});
  console.step(usual());
  EXPECT_EQ(pipe.read(), step_line(usual(), 2000) + "\n");
  StepRecord skipped = usual();
  skipped.skipped = true;
  console.step(skipped);
  EXPECT_EQ(pipe.read(), skipped_line(skipped, 2000) + "\n");
  console.print("one\ntwo\n\n");
  EXPECT_EQ(pipe.read(), "one\ntwo\n");
  console.checkpoint(100, "runs/a/checkpoints/step-00000100", 1288490189, 0.8);
  EXPECT_EQ(pipe.read(), "save  100/2000  runs/a/checkpoints/step-00000100  1.20 GiB in 0.80s\n");
  console.progress(3, 1, 1);
  EXPECT_EQ(pipe.read(), "");
}

TEST(Console, WarningsAreMarked) {
  Pipe pipe;
  Console console({.output_fd = pipe.writer.get()});
  console.warning("disk full");
  EXPECT_EQ(pipe.read(), "warning: disk full\n");
}

TEST(Console, SilentSaysNothing) {
  Console console = Console::silent();
  console.step(usual());
  console.warning("x");
  console.progress(1, 1, 1);
  console.finish();
}

TEST(Console, ErasesTheBarBeforeALineAndDrawsItAgain) {
  PseudoTerminal terminal(60);
  {
    Console console({.output_fd = terminal.fd(), .progress_fd = terminal.fd(), .total_steps = 10});
    console.progress(1, 3.5, 9);
    EXPECT_THAT(terminal.read(), HasSubstr("10%"));
    console.print("a line");
    EXPECT_EQ(terminal.read(), std::string(erase_line) + "a line\n");
    console.progress(2, 3.5, 9);
    EXPECT_THAT(terminal.read(), HasSubstr("20%"));
  }
  EXPECT_EQ(terminal.read(), erase_line) << "the bar is gone at the end";
}

TEST(Console, ClosedOutputDoesNotThrow) {
  Console console({.output_fd = 987});
  console.print("lost");
}

}  // namespace
}  // namespace trireme::observe
