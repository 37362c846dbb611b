// How many bytes of text each id stands for: what bits per byte, and the check that encoding loses nothing, count with.
#pragma once

#include <cstdint>
#include <vector>

#include "data/tokenizer.h"

namespace trireme::data {

/// Bytes of text of each id; 0 for the special tokens, which stand for no text.
inline std::vector<int32_t> text_bytes_of_ids(const Tokenizer& tokenizer) {
  std::vector<int32_t> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    bytes[static_cast<size_t>(id)] =
        tokenizer.is_special(id) ? 0 : static_cast<int32_t>(tokenizer.token_bytes(id).size());
  }
  return bytes;
}

}  // namespace trireme::data
