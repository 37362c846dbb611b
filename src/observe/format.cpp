#include "observe/format.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace trireme::observe {
namespace {

/// Three significant digits of a number below 1000; the limits lie where rounding would add a digit.
std::string three_digits(double value) {
  const double size = std::abs(value);
  if (size < 9.995) return fmt::format("{:.2f}", value);
  if (size < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

}  // namespace

std::string thousands(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "n/a";
  constexpr std::array units = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0 && value == std::floor(value)) return fmt::format("{:.0f}", value);
  return three_digits(value) + units[unit];
}

std::string short_bytes(int64_t bytes) {
  constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  if (std::abs(static_cast<double>(bytes)) < 1000) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), units[unit]);
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e15) return "unknown";
  if (seconds < 0.995) return fmt::format("{:.2f}s", seconds);
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  const int64_t minutes = std::llround(seconds / 60);
  if (minutes < 24 * 60) return fmt::format("{}h{:02}m", minutes / 60, minutes % 60);
  const int64_t hours = std::llround(seconds / 3600);
  return fmt::format("{}d{:02}h", hours / 24, hours % 24);
}

std::string percent(double share, int digits) {
  if (!std::isfinite(share)) return "n/a";
  return fmt::format("{:.{}f}%", share * 100, digits);
}

}  // namespace trireme::observe
