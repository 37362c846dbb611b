// index.json: what makes a folder a checkpoint. It holds the logical tensors and the files with their checksums, not
// every fragment (those are in the files' headers), so it stays small for any number of ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/fragment.h"

namespace trireme::checkpoint {

inline constexpr const char* kIndexName = "index.json";

struct IndexFile {
  std::string name;  ///< in the checkpoint's folder
  int64_t bytes = 0;
  std::string header_checksum;
};

struct Index {
  int64_t step = 0;
  int64_t world_size = 0;
  std::vector<LogicalTensor> tensors;  ///< sorted by name
  std::vector<IndexFile> files;
  nlohmann::json layout;
  nlohmann::json state;
};

/// JSON with a checksum of its own content: a flipped digit in a counter parses well and would go unseen.
std::string encode_index(const Index& index);

/// Reads FOLDER/index.json; throws InputError that names the file when it is missing, damaged, or of a newer format.
Index read_index(const std::filesystem::path& folder);

}  // namespace trireme::checkpoint
