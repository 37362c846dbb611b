// A prepared data set: the tokens of one split, in memory-mapped shards, with the table of its documents.
//
// A folder that `trireme data prepare` wrote (see manifest.h and shard_format.h for what lies in it). It is
// self-contained: the tokenizer lies beside the shards. The tokens of all shards, in order, are one stream; every
// document ends with the end-of-text token.
//
// Damage. open() checks the structure: sizes against the manifest, headers, the checksums of the checksum tables. The
// tokens themselves are checked block by block when they are first read (XXH3, about 10 GB/s), so opening costs nothing
// for a large set and a flipped byte is still an InputError that names the shard and the document, in training as in
// `data verify`.
//
// Thread safety: all const members may be called from any number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/manifest.h"

namespace trireme::data {

class ShardFile;

/// One document of the stream.
struct Document {
  int64_t first_token = 0;  ///< position in the stream of the whole set
  int64_t tokens = 0;       ///< with the end-of-text token
  int64_t text_bytes = 0;   ///< bytes of text that the tokens stand for
  std::string name;         ///< path of the file it came from, relative to the input that was given
  int64_t shard = 0;
};

class Dataset {
 public:
  /// Maps all shards of `folder`. Throws one InputError with all faults: missing, cut short, of another version,
  /// damaged.
  static std::shared_ptr<const Dataset> open(const std::filesystem::path& folder);
  ~Dataset();

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  int64_t token_count() const { return token_count_; }
  int64_t document_count() const { return document_count_; }
  /// Bytes of text of all documents (end-of-text tokens stand for none).
  int64_t text_bytes() const { return text_bytes_; }
  int64_t vocab_size() const { return manifest_.vocab_size; }
  int32_t end_of_text() const { return manifest_.end_of_text; }
  /// Tokenizer::hash() of the tokenizer that made the ids.
  const std::string& tokenizer_hash() const { return manifest_.tokenizer_hash; }
  /// Folder with the copy of that tokenizer.
  std::filesystem::path tokenizer_folder() const { return folder_ / "tokenizer"; }
  /// 32 hex digits: equal when, and only when, tokenizer and shards are equal. It does not depend on where the folder
  /// lies.
  std::string fingerprint() const;

  /// Copies tokens [begin, begin + out.size()) of the stream, across shard borders.
  /// Throws InputError naming shard and document when the block they lie in is damaged.
  void copy_tokens(int64_t begin, std::span<int32_t> out) const;

  /// Document `index`, in order of the stream.
  Document document(int64_t index) const;
  /// Index of the document that holds token `position`.
  int64_t document_of_token(int64_t position) const;
  /// Bytes of text of the first `tokens` tokens of the stream. `token_bytes[id]`: bytes that a token stands for.
  int64_t text_bytes_of_prefix(int64_t tokens, std::span<const int32_t> token_bytes) const;

  /// Reads everything and returns all faults, each naming shard and document; empty when the set is sound.
  std::vector<std::string> verify() const;

 private:
  Dataset() = default;
  size_t shard_of_token(int64_t position) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::vector<std::unique_ptr<ShardFile>> shards_;
  std::vector<int64_t> first_token_;     // of each shard, and the total at the end
  std::vector<int64_t> first_document_;  // of each shard, and the total at the end
  std::vector<int64_t> first_byte_;      // of text, of each shard, and the total at the end
  int64_t token_count_ = 0;
  int64_t document_count_ = 0;
  int64_t text_bytes_ = 0;
};

}  // namespace trireme::data
