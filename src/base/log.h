// Small logging: lines on standard error, each with the rank when there is more than one.
//
// A worker's standard error is its own log file; the launcher shows rank 0's on the terminal. Progress lines of
// training are not logging: see observe/.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace trireme::log {

enum class Level { info, warning, error };

/// Put before every line of this process, e.g. `[rank 1 @ host] `. Set once at start-up, before threads.
void set_prefix(std::string prefix);

/// Writes `prefix level: text\n` with one write call, so that lines of several processes do not mix.
void write(Level level, std::string_view text);

template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace trireme::log
