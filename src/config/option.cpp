#include "config/option.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trireme::config {
namespace {

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  if (!std::isfinite(value)) return text;
  // fmt writes 1 for 1.0, which TOML would read as an integer, and 1e-05 where people write 1e-5.
  if (const size_t e = text.find('e'); e != std::string::npos) {
    const size_t digits = text.find_first_not_of("+-0", e + 1);
    return text.substr(0, e + 1) + (text[e + 1] == '-' ? "-" : "") + text.substr(digits);
  }
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

/// A limit of an integer without ".0".
std::string limit_text(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? fmt::format("{}", static_cast<int64_t>(value))
                                                              : number_text(value);
}

std::string quoted_list(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += quote(words[i]);
  }
  return text;
}

std::string_view type_name(Kind kind) {
  switch (kind) {
    case Kind::integer:
      return "an integer";
    case Kind::number:
      return "a number";
    case Kind::boolean:
      return "true or false";
    case Kind::boolean_or_integer:
      return "true, false or an integer";
    case Kind::text:
      return "a string";
    case Kind::path:
      return "a path (a string)";
    case Kind::texts:
      return "a list of strings";
  }
  return "";
}

}  // namespace

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      quoted += fmt::format("\\{}", c);
    else if (byte < 0x20 || byte == 0x7f)
      quoted += fmt::format("\\u{:04X}", byte);
    else
      quoted += c;
  }
  return quoted + "\"";
}

std::string to_toml(const Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* number = std::get_if<double>(&value)) return number_text(*number);
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  if (const auto* text = std::get_if<std::string>(&value)) return quote(*text);
  std::string list;
  for (const std::string& text : std::get<std::vector<std::string>>(value))
    list += (list.empty() ? "" : ", ") + quote(text);
  return "[" + list + "]";
}

std::string Option::expectation() const {
  if (!choices.empty()) {
    std::string text = choices.size() == 1 ? quote(choices.front()) : "one of " + quoted_list(choices);
    return text;
  }
  std::string text(type_name(binding.kind));
  if (low) text += fmt::format("{} {}", low->included ? " of at least" : " above", limit_text(low->value));
  if (high) {
    text += fmt::format("{}{} {}", low ? " and" : "", high->included ? " at most" : " below", limit_text(high->value));
  }
  if (special) text += fmt::format(", or {}", limit_text(*special));
  return text;
}

std::string Option::fault(const Value& value) const {
  const Value standard = binding.get(Config{});
  if (!only_advice.empty() && value != standard) {
    return fmt::format("only {} works so far: {}", to_toml(standard), only_advice);
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    for (const NotBuilt& refused : not_built) {
      if (*text == refused.value) return fmt::format("{} is not built yet; {}", *text, refused.advice);
    }
    if (choices.empty() || std::find(choices.begin(), choices.end(), *text) != choices.end()) return "";
    if (text->empty() && value == standard) return "";
    const std::string near = trireme::nearest(*text, choices);
    return fmt::format("expected {}{}{}", expectation(),
                       near.empty() ? "" : fmt::format("; did you mean {}?", quote(near)),
                       near.empty() && !choices_hint.empty() ? "; " + choices_hint : "");
  }
  double number = 0;
  if (const auto* integer = std::get_if<int64_t>(&value))
    number = static_cast<double>(*integer);
  else if (const auto* real = std::get_if<double>(&value))
    number = *real;
  else
    return "";
  if (special && number == *special) return "";
  const bool too_low = low && (low->included ? number < low->value : number <= low->value);
  const bool too_high = high && (high->included ? number > high->value : number >= high->value);
  if (!std::isfinite(number) || too_low || too_high) return "expected " + expectation();
  return "";
}

const Option* find_option(std::string_view key) {
  for (const Option& option : options()) {
    if (option.key == key) return &option;
  }
  return nullptr;
}

std::string_view name_of(Device value) { return EnumNames<Device>::values[static_cast<size_t>(value)]; }
std::string_view name_of(Precision value) { return EnumNames<Precision>::values[static_cast<size_t>(value)]; }
std::string_view name_of(Recompute value) { return EnumNames<Recompute>::values[static_cast<size_t>(value)]; }
std::string_view name_of(Offload value) { return EnumNames<Offload>::values[static_cast<size_t>(value)]; }
std::string_view name_of(LrScheduleName value) { return EnumNames<LrScheduleName>::values[static_cast<size_t>(value)]; }
std::string_view name_of(Reproducible value) { return EnumNames<Reproducible>::values[static_cast<size_t>(value)]; }
std::string_view name_of(Shard value) { return EnumNames<Shard>::values[static_cast<size_t>(value)]; }
std::string_view name_of(Quantize value) { return EnumNames<Quantize>::values[static_cast<size_t>(value)]; }
std::string_view name_of(CommBackend value) { return EnumNames<CommBackend>::values[static_cast<size_t>(value)]; }

}  // namespace trireme::config
