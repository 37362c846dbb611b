#include "observe/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <string>

#include "observe/format.h"

namespace trireme::observe {
namespace {

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
  if (record.usual_norm > 0)
    line += fmt::format(", {:.1f} times the usual {}", record.grad_norm / record.usual_norm,
                        decimal(record.usual_norm, 0, 3));
  if (record.loss_scale) line += fmt::format(", loss scale {}", *record.loss_scale);
  return line + fmt::format("; {} (loss {})",
                            record.skipped_late ? "some weights were changed" : "no weight was changed",
                            decimal(record.loss, 0, 4));
}

std::string evaluation_line(const EvalRecord& record, int64_t total_steps) {
  return fmt::format("{}  loss {}  {:.4f} bits/byte  {}: {} tokens, {} of text, {}",
                     head("eval", record.step, total_steps), decimal(record.eval_loss, 7, 4), record.eval_bits_per_byte,
                     record.set.empty() ? "held-out" : record.set, thousands(record.tokens), short_bytes(record.bytes),
                     short_duration(record.seconds));
}

std::string choices_line(const ChoiceRecord& record, int64_t total_steps) {
  return fmt::format("{}  acc  {:.4f}   acc_norm {:.4f}   {}: {} questions, {}", head("eval", record.step, total_steps),
                     record.acc, record.acc_norm, record.suite, thousands(record.questions),
                     short_duration(record.seconds));
}

Console::Console(const ConsoleOptions& options) : options_(options), bar_(options.progress_fd) {}

void Console::step(const StepRecord& record) {
  if (record.skipped) {
    write_line(skipped_line(record, options_.total_steps));
  } else {
    write_line(step_line(record, options_.total_steps));
  }
}

void Console::evaluation(const EvalRecord& record) { write_line(evaluation_line(record, options_.total_steps)); }
void Console::choices(const ChoiceRecord& record) { write_line(choices_line(record, options_.total_steps)); }

void Console::checkpoint(int64_t step, const std::filesystem::path& path, int64_t bytes, double seconds) {
  write_line(fmt::format("{}  {}  {} in {}", head("save", step, options_.total_steps), path.string(),
                         short_bytes(bytes), short_duration(seconds)));
}

void Console::print(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  write_line(text);
}

void Console::warning(std::string_view text) { write_line(fmt::format("warning: {}", text)); }

void Console::progress(int64_t step, double loss, double seconds_left) {
  bar_.update(step, options_.total_steps, loss, seconds_left);
}

void Console::finish() { bar_.erase(); }

void Console::write_line(std::string_view text) {
  if (options_.output_fd < 0) return;
  std::fflush(stdout);  // what others printed before comes first
  bar_.erase();
  write_fully(options_.output_fd, fmt::format("{}\n", text));
}

}  // namespace trireme::observe
