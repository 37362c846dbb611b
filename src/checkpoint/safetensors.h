// The safetensors file format, with Trireme's fragments in its metadata.
//
// File: header length as a 64-bit little-endian number, the header (JSON, padded with spaces so that values start at a
// multiple of 8), then the values without gaps (format: huggingface/safetensors README.md, "Format"). Each stored
// fragment is one entry of the header; `__metadata__` tells which box of which logical tensor it is, and its checksum.
// A tensor that is stored whole has its logical name as key, so other readers of safetensors can use the file as it is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/fragment.h"

namespace trireme::checkpoint {

/// A box of a logical tensor in a file.
struct StoredFragment {
  std::string key;  ///< unique in the file: the logical name, with `@offset` when it is not the whole tensor
  std::string name;
  std::vector<int64_t> shape;  ///< of the whole logical tensor
  Box box;
  DType dtype = DType::f32;
  int64_t begin = 0;  ///< first byte, counted from the end of the header
  int64_t bytes = 0;
  std::string checksum;  ///< XXH3-128 of the bytes, 32 hex digits
};

struct SafetensorsHeader {
  std::vector<StoredFragment> fragments;  ///< in the order of their bytes
  int64_t data_offset = 0;                ///< of the first value in the file: 8 + header length
  std::string checksum;                   ///< XXH3-128 of length and header as stored
  int64_t data_bytes = 0;
};

/// `name` for a whole tensor, else `name@o0,o1`.
std::string key_of(std::string_view name, std::span<const int64_t> shape, const Box& box);

/// What a safetensors file begins with: the length of the header, and the header, padded so that values start at a
/// multiple of 8.
std::string frame_header(std::string json);

/// Length and header as stored. Its length does not depend on the checksums, so the header can be written again when
/// they are known.
std::string encode_header(std::span<const StoredFragment> fragments);

/// Reads and checks the header of a file; throws InputError that names the file and the entry. Values are not read.
SafetensorsHeader read_header(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
