// The two files of a tokenizer's folder.
//
// tokenizer.tiktoken: a line `BASE64 RANK` for each token, in order of rank, as tiktoken reads and writes it.
// manifest.json:
//   {"format": "trireme-tokenizer", "version": 1, "pattern": "<regular expression>", "vocab_size": 4096,
//    "specials": [{"text": "<|endoftext|>", "id": 4095}], "end_of_text": "<|endoftext|>", "hash": "<32 hex digits>"}
#pragma once

#include <filesystem>
#include <string>

#include "data/tokenizer.h"

namespace trireme::data {

/// The highest id plus 1; every special has its id.
int64_t vocab_size_of(const TokenizerParts& parts);

/// Whether a file is there and is a tokenizer's manifest.json.
bool is_tokenizer_manifest(const std::filesystem::path& path);

/// XXH3-128 over the rank file, the pattern, the specials and the end of text; 32 hex digits.
std::string tokenizer_hash(const TokenizerParts& parts);

/// What the files hold. Faults of the files (missing, not base64, a rank twice or left out, a hash that does not fit)
/// are thrown as one InputError; whether the parts make a tokenizer is Tokenizer's to check.
TokenizerParts read_tokenizer(const std::filesystem::path& folder);

/// A published rank file, told by its content whatever its name: r50k_base (GPT-2), p50k_base, cl100k_base (GPT-4),
/// o200k_base (GPT-4o) of tiktoken; pattern and specials are known. Throws InputError for any other file.
TokenizerParts read_encoding(const std::filesystem::path& path);

/// Any rank file. Specials without an id get those after the ranks; the first ends a document.
TokenizerParts read_rank_file(const std::filesystem::path& path, const std::string& pattern,
                              std::vector<SpecialToken> specials);

/// Durable; the manifest goes last, so that a folder with a manifest that fits is complete.
void write_tokenizer(const std::filesystem::path& folder, const TokenizerParts& parts);

}  // namespace trireme::data
