#include "data/split_ascii.h"

#include <array>
#include <cstdint>

namespace trireme::data {
namespace {

/// Class of a byte in the terms of the patterns: \p{L}, \p{N}, \s, the rest of ASCII, and what only the engine knows.
enum Class : uint8_t { letter = 1, digit = 2, space = 4, other = 8, wide = 16 };

constexpr std::array<uint8_t, 256> kClass = [] {
  std::array<uint8_t, 256> table{};
  for (int c = 0; c < 256; ++c) {
    if (c >= 0x80) {
      table[c] = wide;
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      table[c] = letter;
    } else if (c >= '0' && c <= '9') {
      table[c] = digit;
    } else if ((c >= '\t' && c <= '\r') || c == ' ') {
      table[c] = space;
    } else {
      table[c] = other;
    }
  }
  return table;
}();

/// A text and its classes; a position past the end has class 0.
struct Reader {
  std::string_view text;

  uint8_t at(size_t i) const { return i < text.size() ? kClass[static_cast<unsigned char>(text[i])] : 0; }
  char lower(size_t i) const { return static_cast<char>(text[i] | 0x20); }
  bool newline(size_t i) const { return i < text.size() && (text[i] == '\n' || text[i] == '\r'); }
  size_t skip(size_t i, uint8_t which) const {
    while (at(i) == which) ++i;
    return i;
  }
  /// End of a run of `which` from `i` on, or 0 when a wide character may continue it.
  size_t run(size_t i, uint8_t which) const {
    i = skip(i, which);
    return at(i) == wide ? 0 : i;
  }
};

// What cl100k and o200k have in common. Each takes the class of the first bytes as known, and returns 0 as its callers
// do.

/// `\p{N}{1,3}` at `begin`, which is a digit.
size_t digits_end(const Reader& r, size_t begin) {
  const uint8_t second = r.at(begin + 1);
  if (second != digit) return second == wide ? 0 : begin + 1;
  const uint8_t third = r.at(begin + 2);
  if (third != digit) return third == wide ? 0 : begin + 2;
  return begin + 3;
}

/// Length of what follows the apostrophe at `apostrophe` in `(?i:'s|'t|'re|'ve|'m|'ll|'d)`; 0: no contraction in ASCII.
size_t contraction(const Reader& r, size_t apostrophe) {
  if (r.at(apostrophe + 1) != letter) return 0;
  const char c = r.lower(apostrophe + 1);
  if (c == 's' || c == 't' || c == 'm' || c == 'd') return 1;
  if (c != 'r' && c != 'v' && c != 'l') return 0;
  return r.at(apostrophe + 2) == letter && r.lower(apostrophe + 2) == (c == 'l' ? 'l' : 'e') ? 2 : 0;
}

/// `\s+(?!\S)|\s+` over the whitespace run [begin, end): all of it at the end of the text, else all but its last
/// character, which goes with the next piece, unless it is the only one.
size_t spaces_end(const Reader& r, size_t begin, size_t end) {
  return end == r.text.size() || end == begin + 1 ? end : end - 1;
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+` at `begin`, which is a space.
size_t spaces_or_lines_end(const Reader& r, size_t begin) {
  const size_t end = r.run(begin + 1, space);
  if (end == 0) return 0;
  for (size_t i = end; i > begin; --i) {
    if (r.newline(i - 1)) return i;
  }
  return spaces_end(r, begin, end);
}

}  // namespace

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
size_t ascii_piece_end_cl100k(std::string_view text, size_t begin) {
  const Reader r{text};
  const uint8_t first = r.at(begin), second = r.at(begin + 1);
  if (first == letter) return r.run(begin + 1, letter);
  if (first == wide) return 0;
  // A wide character after the apostrophe (U+017F folds to s) or after its first letter goes to the engine further
  // down.
  if (text[begin] == '\'') {
    if (const size_t length = contraction(r, begin); length != 0) return begin + 1 + length;
  }
  if (first == digit) return digits_end(r, begin);
  if (!r.newline(begin)) {
    if (second == letter) return r.run(begin + 2, letter);
    if (second == wide) return 0;
  }
  if (first == other || (text[begin] == ' ' && second == other)) {
    size_t end = r.run(begin + 1, other);
    if (end == 0) return 0;
    while (r.newline(end)) ++end;
    return end;
  }
  return spaces_or_lines_end(r, begin);
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t ascii_piece_end_gpt2(std::string_view text, size_t begin) {
  const Reader r{text};
  if (text[begin] == '\'' && begin + 1 < text.size()) {
    const char c = text[begin + 1];
    if (c == 's' || c == 't' || c == 'm' || c == 'd') return begin + 2;
    if (begin + 2 < text.size() && (c == 'r' || c == 'v' || c == 'l') && text[begin + 2] == (c == 'l' ? 'l' : 'e')) {
      return begin + 3;
    }
  }
  size_t start = begin;
  if (text[begin] == ' ') {
    const uint8_t second = r.at(begin + 1);
    if (second == wide) return 0;
    if (second != space && second != 0) ++start;
  }
  const uint8_t kind = r.at(start);
  if (kind == wide) return 0;
  const size_t end = r.run(start + 1, kind);
  if (end == 0 || kind != space) return end;
  return spaces_end(r, begin, end);
}

// [^\r\n\p{L}\p{N}]?U*l+(?i:'s|...)?|[^\r\n\p{L}\p{N}]?U+l*(?i:'s|...)?|\p{N}{1,3}|
// ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+| \s+(?!\S)|\s+ where U is an upper-case letter and l a lower-case one: in ASCII,
// no letter is both.
size_t ascii_piece_end_o200k(std::string_view text, size_t begin) {
  const Reader r{text};
  const uint8_t first = r.at(begin), second = r.at(begin + 1);
  if (first == wide) return 0;
  if (first == digit) return digits_end(r, begin);
  if (first == letter || (!r.newline(begin) && second == letter)) {
    size_t end = first == letter ? begin : begin + 1;
    while (end < text.size() && text[end] >= 'A' && text[end] <= 'Z') ++end;
    while (end < text.size() && text[end] >= 'a' && text[end] <= 'z') ++end;
    if (r.at(end) == wide) return 0;
    if (end >= text.size() || text[end] != '\'') return end;
    // A wide character may fold to an ASCII letter (U+017F to s).
    if (r.at(end + 1) == wide || (r.at(end + 1) == letter && r.at(end + 2) == wide)) return 0;
    const size_t length = contraction(r, end);
    return length == 0 ? end : end + 1 + length;
  }
  if (!r.newline(begin) && second == wide) return 0;
  if (first == other || (text[begin] == ' ' && second == other)) {
    size_t end = r.run(begin + 1, other);
    if (end == 0) return 0;
    while (r.newline(end) || (end < text.size() && text[end] == '/')) ++end;
    return end;
  }
  return spaces_or_lines_end(r, begin);
}

}  // namespace trireme::data
