// From text files to a tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace trireme::data {

struct TokenizerTraining {
  int64_t vocab = 4096;  ///< number of ids, specials included
  std::vector<std::string> specials{
      "<|endoftext|>"};             ///< the end of text is `<|endoftext|>`, or the first when not among them
  std::string pattern = "cl100k";   ///< cl100k, gpt2, o200k or a regular expression
  std::string text_field = "text";  ///< of the lines of .jsonl files
  int threads = 0;                  ///< 0: one for each processor that this process may use
};

struct TrainedTokenizer {
  Tokenizer tokenizer;
  int64_t files = 0;
  int64_t pieces = 0;
  int64_t distinct_pieces = 0;
};

/// Trains on whole files. The result depends on the set of files and the options, not on their order or on `threads`.
/// Throws one InputError: options that make no tokenizer, files that cannot be read, or too little text for `vocab`.
TrainedTokenizer train_tokenizer(std::span<const std::filesystem::path> files, const TokenizerTraining& options);

}  // namespace trireme::data
