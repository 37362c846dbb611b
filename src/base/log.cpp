#include "base/log.h"

#include <unistd.h>

namespace trireme::log {
namespace {

std::string& prefix_storage() {
  static std::string prefix;
  return prefix;
}

}  // namespace

void set_prefix(std::string prefix) { prefix_storage() = std::move(prefix); }

void write(Level level, std::string_view text) {
  std::string line = prefix_storage();
  if (level == Level::warning) line += "warning: ";
  if (level == Level::error) line += "error: ";
  line += text;
  line += '\n';
  // A log line that cannot be written (closed pipe, full disk) must not stop the work.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace trireme::log
