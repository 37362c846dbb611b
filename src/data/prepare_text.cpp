#include "data/prepare_text.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace trireme::data {
namespace {

constexpr std::array<std::string_view, 4> invalid_names{"keep", "replace", "drop", "error"};

struct Sequence {
  size_t bytes;  // of the sequence, or of its longest part that could have begun one
  bool valid;
};

/// The sequence at the front of `text`, which is not empty. Table 3-7 of the Unicode standard.
Sequence next_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true};
  size_t length;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // shorter forms exist
    if (lead == 0xED) high = 0x9F;  // surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;  // above U+10FFFF
  } else {
    return {1, false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size() || byte(i) < low || byte(i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

size_t ascii_run(std::string_view text, size_t at) {
  while (at + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080u) != 0) break;
    at += 8;
  }
  return at;
}

}  // namespace

InvalidUtf8 invalid_utf8_from_name(std::string_view name) {
  const auto* const found = std::find(invalid_names.begin(), invalid_names.end(), name);
  if (found == invalid_names.end())
    throw_input("--invalid-utf8 {} is not known; keep, replace, drop and error are", name);
  return static_cast<InvalidUtf8>(found - invalid_names.begin());
}

std::string_view name_of(InvalidUtf8 value) { return invalid_names[static_cast<size_t>(value)]; }

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while ((at = ascii_run(text, at)) < text.size()) {
    const Sequence sequence = next_sequence(text.substr(at));
    if (!sequence.valid) return at;
    at += sequence.bytes;
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  for (size_t bad; (bad = find_invalid_utf8(text)) != std::string_view::npos;) {
    out.append(text.substr(0, bad)).append("\xEF\xBF\xBD");
    text.remove_prefix(bad + next_sequence(text.substr(bad)).bytes);
  }
  return out.append(text);
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos; }

TextRange next_document(std::string_view file, size_t offset, std::string_view separator) {
  if (separator.empty()) return {offset, file.size(), file.size()};
  for (size_t at = offset; (at = file.find(separator, at)) != std::string_view::npos; ++at) {
    size_t end = at + separator.size();
    if (at > 0 && file[at - 1] != '\n') continue;
    if (end < file.size() && file[end] == '\r') ++end;
    if (end < file.size() && file[end] != '\n') continue;
    return {offset, at, std::min(end + 1, file.size())};
  }
  return {offset, file.size(), file.size()};
}

TextRange next_line(std::string_view file, size_t offset) {
  const size_t end = std::min(file.find('\n', offset), file.size());
  const bool carriage = end > offset && file[end - 1] == '\r';
  return {offset, carriage ? end - 1 : end, std::min(end + 1, file.size())};
}

}  // namespace trireme::data
