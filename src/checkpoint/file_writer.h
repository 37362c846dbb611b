// Writes one rank's safetensors file: big writes, hashed on the way, durable at the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace trireme::checkpoint {

/// A stored fragment and its contiguous values (null when it has no bytes).
struct Part {
  StoredFragment stored;
  const std::byte* data = nullptr;
};

struct WrittenFile {
  int64_t bytes = 0;
  std::string header_checksum;
};

/// Makes `path`, which must not exist, lays the parts out (wide elements first, so that values are aligned), writes,
/// and syncs. `hook` is told `in_file`, `after_file` and `after_fsync`. Errors name the path; for a full disk also what
/// is needed and what is free.
WrittenFile write_rank_file(const std::filesystem::path& path, std::vector<Part> parts,
                            const std::function<void(std::string_view point)>& hook);

}  // namespace trireme::checkpoint
