// Words and numbers that a user wrote.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace trireme {

/// ASCII letters in lower case.
std::string lower(std::string_view text);

/// The whole text as a finite number; nothing for anything else.
std::optional<double> to_number(std::string_view text);

/// Whether all of `text` fits `pattern`, in which * stands for any characters, also none, and ? for one.
bool matches(const std::string& pattern, const std::string& text);

/// "name=number". `name` is a part of the text, all of it when there is no '='; `number` is empty for what is none.
struct NamedNumber {
  std::string_view name;
  std::optional<double> number;
};
NamedNumber to_named_number(std::string_view text);

}  // namespace trireme
