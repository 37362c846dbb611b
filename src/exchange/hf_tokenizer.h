// tokenizer.json and tokenizer_config.json, as the tokenizers library reads them.
#pragma once

#include <cstdint>
#include <string>

#include "data/tokenizer.h"

namespace trireme::exchange {

/// Byte-level BPE with the tokenizer's pattern, its vocabulary, and as merges all pairs of tokens whose bytes together
/// are a token, in order of its rank: what tiktoken's rule allows.
std::string hf_tokenizer(const data::Tokenizer& tokenizer);
std::string hf_tokenizer_config(const data::Tokenizer& tokenizer, int64_t max_seq_len);

}  // namespace trireme::exchange
