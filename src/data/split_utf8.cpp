#include "data/split_utf8.h"

#include <cstdint>
#include <cstring>

namespace trireme::data {
namespace {

/// Length of the well-formed sequence at `p` (at least one byte is left), or 0.
size_t sequence_length(const unsigned char* p, size_t left) {
  const unsigned char lead = p[0];
  const auto continues = [&](size_t i) { return (p[i] & 0xC0) == 0x80; };
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return left >= 2 && continues(1) ? 2 : 0;
  if (lead < 0xF0) {
    if (left < 3 || !continues(1) || !continues(2)) return 0;
    if (lead == 0xE0 && p[1] < 0xA0) return 0;  // overlong
    if (lead == 0xED && p[1] > 0x9F) return 0;  // surrogates
    return 3;
  }
  if (lead > 0xF4 || left < 4 || !continues(1) || !continues(2) || !continues(3)) return 0;
  if (lead == 0xF0 && p[1] < 0x90) return 0;  // overlong
  if (lead == 0xF4 && p[1] > 0x8F) return 0;  // above U+10FFFF
  return 4;
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  size_t at = 0;
  while (at < text.size()) {
    // 32 ASCII bytes at a time: this pass must cost little beside the merges.
    while (text.size() - at >= 32) {
      uint64_t words[4];
      std::memcpy(words, p + at, sizeof words);
      if (((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080) != 0) break;
      at += 32;
    }
    // The rest of this window, then ASCII again.
    for (const size_t stop = at + 32; at < text.size() && at < stop;) {
      const size_t length = sequence_length(p + at, text.size() - at);
      if (length == 0) return at;
      at += length;
    }
  }
  return at;
}

}  // namespace trireme::data
