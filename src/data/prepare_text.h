// Text on its way to the tokenizer: bytes that are not UTF-8, documents inside a file, hashes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::data {

/// What to do with a document whose bytes are not UTF-8.
enum class InvalidUtf8 {
  keep,     ///< as it is: the byte-level tokenizer encodes any bytes
  replace,  ///< U+FFFD for each maximal part of a broken sequence, as Python's errors="replace" (Unicode 15,
            ///< section 3.9)
  drop,     ///< leave the document out, and count it
  error,    ///< refuse, naming file and byte
};
/// keep, replace, drop, error; throws InputError with the choices.
InvalidUtf8 invalid_utf8_from_name(std::string_view name);
std::string_view name_of(InvalidUtf8 value);

/// Offset of the first byte that is not UTF-8 (overlong forms, surrogates and values over U+10FFFF are not), or npos.
size_t find_invalid_utf8(std::string_view text);
std::string replace_invalid_utf8(std::string_view text);

/// True for text of nothing but ASCII white space: there is nothing to learn from it.
bool is_blank(std::string_view text);

/// Where the next document of a file lies: [begin, end), and the offset at which to look for the one after it.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
  size_t next = 0;
};
/// The document that starts at `offset`. `separator`: documents end at lines equal to it; empty: the file is one
/// document.
TextRange next_document(std::string_view file, size_t offset, std::string_view separator);
/// The line that starts at `offset`, without its end (\n or \r\n).
TextRange next_line(std::string_view file, size_t offset);

}  // namespace trireme::data
