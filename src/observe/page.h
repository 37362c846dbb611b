// A page of text for a terminal.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace trireme::observe {

/// Titles stand in a column of their own; what follows the first line is set in below it.
class Page {
 public:
  template <typename... Args>
  void section(std::string_view title, fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format("{:<12}{}\n", title, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    section("", format, std::forward<Args>(args)...);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace trireme::observe
