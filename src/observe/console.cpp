#include "observe/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "observe/format.h"

namespace trireme::observe {
namespace {

constexpr std::string_view kPlain = "";
constexpr std::string_view kYellow = "\x1b[33m";
constexpr std::string_view kGreen = "\x1b[32m";
constexpr std::string_view kReset = "\x1b[0m";

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

bool wants_colour(int fd) {
  if (!environment("NO_COLOR").empty()) return false;
  const std::string_view forced = environment("CLICOLOR_FORCE");
  if (!forced.empty() && forced != "0") return true;
  return isatty(fd) != 0 && environment("TERM") != "dumb";
}

/// A decimal of a fixed width where it fits, an exponent where it does not, a word for what is no number. Width 0: a
/// decimal as long as it is.
std::string decimal(double value, int width, int digits) {
  if (std::isnan(value)) return fmt::format("{:>{}}", "NaN", width);
  if (std::isinf(value)) return fmt::format("{:>{}}", value > 0 ? "inf" : "-inf", width);
  std::string text = fmt::format("{:{}.{}f}", value, width, digits);
  if (width > 0 && static_cast<int>(text.size()) > width) text = fmt::format("{:{}.1e}", value, width);
  return text;
}

/// "step   120/2000": all lines begin alike, so that the columns after it stand in line.
std::string head(std::string_view word, int64_t step, int64_t total_steps) {
  if (total_steps <= 0) return fmt::format("{} {:6}", word, step);
  const std::string total = std::to_string(total_steps);
  return fmt::format("{} {:>{}}/{}", word, step, total.size(), total);
}

/// Whatever happens to the terminal, the run goes on.
void write_fully(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::string step_line(const StepRecord& record, int64_t total_steps) {
  std::string line = fmt::format("{}  loss {}  grad norm {}  lr {:.2e}  {:>6} tok/s  MFU {:>6}  mem {:>8}",
                                 head("step", record.step, total_steps), decimal(record.loss, 7, 4),
                                 decimal(record.grad_norm, 7, 3), record.lr, short_number(record.tokens_per_second),
                                 percent(record.mfu), short_bytes(record.peak_memory_bytes));
  if (record.seconds_left >= 0) line += "  ETA " + short_duration(record.seconds_left);
  return line;
}

std::string skipped_line(const StepRecord& record, int64_t total_steps) {
  std::string line = fmt::format("{}  skipped: gradient norm {}", head("step", record.step, total_steps),
                                 decimal(record.grad_norm, 0, 3));
  if (!record.skipped_parameter.empty()) line += ", first in " + record.skipped_parameter;
  return line + fmt::format("; no weight was changed (loss {})", decimal(record.loss, 0, 4));
}

std::string evaluation_line(const EvalRecord& record, int64_t total_steps) {
  return fmt::format("{}  loss {}  {:.4f} bits/byte  held-out: {} tokens, {} of text, {}",
                     head("eval", record.step, total_steps), decimal(record.eval_loss, 7, 4), record.eval_bits_per_byte,
                     thousands(record.tokens), short_bytes(record.bytes), short_duration(record.seconds));
}

ConsoleOptions ConsoleOptions::from_environment(int64_t total_steps) {
  ConsoleOptions options;
  options.total_steps = total_steps;
  options.colour = wants_colour(options.output_fd);
  const std::string_view fd = environment("TRIREME_PROGRESS_FD");
  int number = -1;
  const auto [end, error] = std::from_chars(fd.data(), fd.data() + fd.size(), number);
  if (error == std::errc() && end == fd.data() + fd.size() && !fd.empty()) options.progress_fd = number;
  return options;
}

Console::Console(const ConsoleOptions& options) : options_(options), bar_(options.progress_fd) {}

void Console::step(const StepRecord& record) {
  if (record.skipped) {
    write_line(kYellow, skipped_line(record, options_.total_steps));
  } else {
    write_line(kPlain, step_line(record, options_.total_steps));
  }
}

void Console::evaluation(const EvalRecord& record) {
  write_line(kGreen, evaluation_line(record, options_.total_steps));
}

void Console::checkpoint(int64_t step, const std::filesystem::path& path, int64_t bytes, double seconds) {
  write_line(kPlain, fmt::format("{}  {}  {} in {}", head("save", step, options_.total_steps), path.string(),
                                 short_bytes(bytes), short_duration(seconds)));
}

void Console::print(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  write_line(kPlain, text);
}

void Console::warning(std::string_view text) { write_line(kYellow, fmt::format("warning: {}", text)); }

void Console::progress(int64_t step, double loss, double seconds_left) {
  bar_.update(step, options_.total_steps, loss, seconds_left);
}

void Console::finish() { bar_.erase(); }

void Console::write_line(std::string_view colour, std::string_view text) {
  if (options_.output_fd < 0) return;
  std::string line;
  if (options_.colour && !colour.empty()) {
    line = fmt::format("{}{}{}\n", colour, text, kReset);
  } else {
    line = fmt::format("{}\n", text);
  }
  std::fflush(stdout);  // what others printed before comes first
  bar_.erase();
  write_fully(options_.output_fd, line);
}

}  // namespace trireme::observe
