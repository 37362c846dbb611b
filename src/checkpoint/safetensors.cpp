#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace trireme::checkpoint {

// Lengths, and values behind them, go to the file as they are in memory.
static_assert(std::endian::native == std::endian::little, "the format is little-endian, so must be the machine");

namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kFragmentPrefix = "fragment:";
constexpr std::string_view kNoChecksum = "00000000000000000000000000000000";
constexpr int64_t kLengthBytes = 8;
// The reference implementation refuses longer headers (safetensors/src/tensor.rs, MAX_HEADER_SIZE).
constexpr int64_t kMaxHeaderBytes = 100'000'000;

/// One entry of the header and its line of metadata, checked against each other.
StoredFragment parse_entry(const std::string& key, const json& entry, const json& metadata) {
  const std::string metadata_key = std::string(kFragmentPrefix) + key;
  if (!metadata.contains(metadata_key)) {
    throw_input("entry `{}` has no metadata `{}`: the file is not of a Trireme checkpoint", key, metadata_key);
  }
  const json info = json::parse(metadata.at(metadata_key).get<std::string>());
  StoredFragment fragment;
  fragment.key = key;
  fragment.name = info.at("name").get<std::string>();
  fragment.shape = info.at("shape").get<std::vector<int64_t>>();
  fragment.box.offset = info.at("offset").get<std::vector<int64_t>>();
  fragment.checksum = info.at("xxh3_128").get<std::string>();
  fragment.box.size = entry.at("shape").get<std::vector<int64_t>>();
  fragment.dtype = dtype_from_name(entry.at("dtype").get<std::string>());
  const auto offsets = entry.at("data_offsets").get<std::vector<int64_t>>();
  if (offsets.size() != 2) throw_input("entry `{}` has {} data_offsets instead of 2", key, offsets.size());
  fragment.begin = offsets[0];
  fragment.bytes = offsets[1] - offsets[0];
  const size_t dimensions = fragment.shape.size();
  bool inside = fragment.box.offset.size() == dimensions && fragment.box.size.size() == dimensions;
  for (size_t i = 0; inside && i < dimensions; ++i) {
    inside = fragment.box.offset[i] >= 0 && fragment.box.size[i] >= 0 &&
             fragment.box.offset[i] + fragment.box.size[i] <= fragment.shape[i];
  }
  if (!inside) {
    throw_input("entry `{}` at {} of size {} is not in the shape {}", key, to_text(fragment.box.offset),
                to_text(fragment.box.size), to_text(fragment.shape));
  }
  if (elements(fragment.box) * size_of(fragment.dtype) != fragment.bytes) {
    throw_input("entry `{}` has {} bytes, {} {} needs {}", key, fragment.bytes, name_of(fragment.dtype),
                to_text(fragment.box.size), elements(fragment.box) * size_of(fragment.dtype));
  }
  return fragment;
}

}  // namespace

std::string key_of(std::string_view name, std::span<const int64_t> shape, const Box& box) {
  if (std::ranges::equal(box.size, shape)) return std::string(name);
  return fmt::format("{}@{}", name, fmt::join(box.offset, ","));
}

std::string frame_header(std::string json) {
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (static_cast<int64_t>(json.size()) > kMaxHeaderBytes)
    throw_internal("a header of {} bytes; safetensors allows {}", json.size(), kMaxHeaderBytes);
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + json;
}

std::string encode_header(std::span<const StoredFragment> fragments) {
  json header = json::object();
  json metadata = json::object();
  metadata["format"] = "pt";  // transformers asks for it
  for (const StoredFragment& fragment : fragments) {
    TRIREME_CHECK(fragment.key != kMetadata && !header.contains(fragment.key), "two fragments have the key `{}`",
                  fragment.key);
    header[fragment.key] = {{"dtype", name_of(fragment.dtype)},
                            {"shape", fragment.box.size},
                            {"data_offsets", {fragment.begin, fragment.begin + fragment.bytes}}};
    const json info = {{"name", fragment.name},
                       {"shape", fragment.shape},
                       {"offset", fragment.box.offset},
                       {"xxh3_128", fragment.checksum.empty() ? std::string(kNoChecksum) : fragment.checksum}};
    metadata[std::string(kFragmentPrefix) + fragment.key] = info.dump();
  }
  header[std::string(kMetadata)] = std::move(metadata);
  return frame_header(header.dump());
}

SafetensorsHeader read_header(const std::filesystem::path& path) {
  const FileDescriptor file = open_file(path, O_RDONLY, "open");
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) throw_errno("stat", path.string(), errno);
  const int64_t file_bytes = info.st_size;
  uint64_t length = 0;
  read_exactly(file.get(), std::as_writable_bytes(std::span(&length, 1)), 0, path);
  if (length > static_cast<uint64_t>(std::min(kMaxHeaderBytes, file_bytes - kLengthBytes))) {
    throw_input("{} is damaged: its header says to be {} bytes long, in a file of {}", path.string(), length,
                file_bytes);
  }
  std::string stored(kLengthBytes + length, '\0');
  read_exactly(file.get(), std::as_writable_bytes(std::span(stored)), 0, path);

  SafetensorsHeader header;
  header.data_offset = static_cast<int64_t>(stored.size());
  header.checksum = hash_hex(stored);
  try {
    const json content = json::parse(std::string_view(stored).substr(kLengthBytes));
    const json metadata = content.value(std::string(kMetadata), json::object());
    for (const auto& [key, entry] : content.items()) {
      if (key != kMetadata) header.fragments.push_back(parse_entry(key, entry, metadata));
    }
    std::ranges::sort(header.fragments, [](const StoredFragment& a, const StoredFragment& b) {
      return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
    });
    for (const StoredFragment& fragment : header.fragments) {
      if (fragment.begin != header.data_bytes) {
        throw_input("entry `{}` begins at byte {}, where {} was expected", fragment.key, fragment.begin,
                    header.data_bytes);
      }
      header.data_bytes += fragment.bytes;
    }
  } catch (const json::exception& error) {
    throw_input("{} is damaged: its header does not parse: {}", path.string(), error.what());
  } catch (const InputError& error) {
    throw_input("{} is damaged: {}", path.string(), error.what());
  }
  if (header.data_offset + header.data_bytes != file_bytes) {
    throw_input("{} is damaged: its header describes {} bytes, it has {}", path.string(),
                header.data_offset + header.data_bytes, file_bytes);
  }
  return header;
}

}  // namespace trireme::checkpoint
