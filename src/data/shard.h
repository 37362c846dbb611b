// A shard: one file with the tokens of some documents, their table, and checksums. Made to be mapped.
//
//   offset 0            ShardHeader (128 bytes)
//   128                 tokens: u16 or u32 each, little-endian, documents one after another
//   table_offset        ShardDocument for each document (8-byte aligned)
//   names_offset        names of the documents, each ended by a zero byte; neighbours from one file share theirs
//   blocks_offset       XXH3-64 of each 64 KiB block of the bytes [128, blocks_offset)
//
// The checksums form a tree: the header holds the hash of the block table and its own, so opening a shard reads a few
// kilobytes however large it is, and each block is checked when it is first read. A document's tokens have a checksum
// of their own, so that damage in a block is named by document.
//
// A shard holds whole documents only: a document longer than the shard size makes a longer shard.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "data/manifest.h"

namespace trireme::data {

struct ShardHeader {
  static constexpr std::array<char, 8> expected_magic{'T', 'R', 'I', 'S', 'H', 'A', 'R', 'D'};
  static constexpr uint32_t current_version = 1;
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t id_bytes;  // 2 or 4
  uint64_t file_bytes;
  uint64_t tokens;
  uint64_t documents;
  uint64_t text_bytes;
  uint64_t table_offset;
  uint64_t names_offset;
  uint64_t blocks_offset;
  uint64_t blocks;
  uint64_t blocks_hash;              // XXH3-64 of the block table
  std::array<uint64_t, 4> reserved;  // zero
  uint64_t header_hash;              // XXH3-64 of the 120 bytes before
};
static_assert(sizeof(ShardHeader) == 128);

struct ShardDocument {
  uint64_t first_token;  // within the shard
  uint64_t text_bytes;
  uint64_t text_hash_low;  // XXH3-128 of the text that was tokenized
  uint64_t text_hash_high;
  uint64_t token_hash;   // XXH3-64 of the ids as they lie in the file
  uint64_t source_file;  // index in the sorted list of input files, with the byte range that the document had there
  uint64_t source_offset;
  uint64_t source_bytes;
  uint64_t name_offset;  // from names_offset
};
static_assert(sizeof(ShardDocument) == 72);

inline constexpr int64_t shard_block_bytes = 64 * 1024;

/// Collects documents in memory and writes them as one shard file.
class ShardWriter {
 public:
  explicit ShardWriter(int id_bytes) : id_bytes_(id_bytes) {}

  /// `document`: first_token, token_hash and name_offset are filled in here. `ids` end with the end-of-text token.
  void add(ShardDocument document, std::string_view name, std::span<const int32_t> ids);
  int64_t tokens() const { return static_cast<int64_t>(ids_.size()) / id_bytes_; }
  bool empty() const { return documents_.empty(); }

  /// Writes `path` so that it is there whole or not at all, and starts anew.
  ShardEntry write(const std::filesystem::path& path);

 private:
  int id_bytes_;
  std::string ids_;
  std::vector<ShardDocument> documents_;
  std::string names_;
  std::string last_name_;
  uint64_t text_bytes_ = 0;
};

/// A mapped shard. Thread-safe. Reading a damaged block throws an InputError that names the shard and the documents.
class ShardFile {
 public:
  /// Checks size, header and checksum table against the manifest's entry; throws InputError with what was expected and
  /// found.
  ShardFile(const std::filesystem::path& path, const ShardEntry& expected, int id_bytes);

  int64_t tokens() const { return static_cast<int64_t>(header_.tokens); }
  int64_t documents() const { return static_cast<int64_t>(header_.documents); }

  void copy_tokens(int64_t begin, std::span<int32_t> out) const;
  const ShardDocument& document(int64_t index) const;
  std::string name(int64_t index) const;
  int64_t tokens_of(int64_t index) const;
  int64_t document_of_token(int64_t token) const;

  /// Reads everything: blocks, whole-file checksum, order of the table, ids below `vocab_size`, `end_of_text` at the
  /// end of each document. Returns the faults.
  std::vector<std::string> verify(const std::string& checksum, int64_t vocab_size, int32_t end_of_text) const;

 private:
  void require_sound(int64_t begin, int64_t end) const;  // byte range of the file
  bool block_is_sound(int64_t block) const;
  std::string_view block_bytes(int64_t block) const;
  std::string_view token_bytes(int64_t document) const;
  const ShardDocument& raw_document(int64_t index) const;
  std::string describe_damage(int64_t block) const;
  bool table_is_sound() const;
  std::string raw_name(int64_t index) const;
  std::string describe_document(int64_t index) const;
  int32_t id_at(int64_t token) const;

  std::filesystem::path path_;
  MappedFile file_;
  ShardHeader header_{};
  mutable std::vector<std::atomic<uint8_t>> sound_;  // of each block: 1 once it was checked
};

}  // namespace trireme::data
