// manifest.json of a prepared data set: what the shards hold, written last, so that a folder without one is not a data
// set.
//
//   {"format": "trireme-tokens", "version": 1, "tokenizer_hash": "...", "vocab_size": 4097, "end_of_text": 4096,
//    "id_type": "uint16", "tokens": ..., "documents": ..., "text_bytes": ...,
//    "shards": [{"file": "shard-00000.tokens", "bytes": ..., "tokens": ..., "documents": ..., "text_bytes": ...,
//                "checksum": "<XXH3-128 of the whole file, 32 hex digits>"}]}
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace trireme::data {

struct ShardEntry {
  std::string file;  ///< name within the folder
  int64_t bytes = 0;
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t text_bytes = 0;
  std::string checksum;  ///< XXH3-128 of the whole file

  bool operator==(const ShardEntry&) const = default;
};

struct Manifest {
  static constexpr int current_version = 1;
  std::string tokenizer_hash;
  int64_t vocab_size = 0;
  int32_t end_of_text = 0;
  int id_bytes = 2;  ///< 2 (uint16) while vocab_size is at most 65536, else 4 (uint32)
  std::vector<ShardEntry> shards;

  int64_t tokens() const;
  int64_t documents() const;
  int64_t text_bytes() const;
  std::string fingerprint() const;  ///< see Dataset::fingerprint
};

void to_json(nlohmann::json& json, const ShardEntry& entry);
void from_json(const nlohmann::json& json, ShardEntry& entry);

/// Reads and checks FOLDER/manifest.json. Throws InputError: not a prepared folder (and what is there instead: a
/// prepare that did not finish, or train/ and eval/ below it), not JSON, a key missing, another version.
Manifest read_manifest(const std::filesystem::path& folder);
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace trireme::data
