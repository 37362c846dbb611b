#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "data/shard.h"

namespace trireme::data {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped: their numbers are little-endian");

template <typename T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename Id>
void append_ids(std::string& bytes, std::span<const int32_t> ids) {
  const size_t old = bytes.size();
  bytes.resize(old + ids.size() * sizeof(Id));
  char* out = bytes.data() + old;
  for (const int32_t id : ids) {
    const Id narrow = static_cast<Id>(id);
    std::memcpy(out, &narrow, sizeof narrow);
    out += sizeof narrow;
  }
}

/// Hashes a stream of bytes in blocks of fixed size, whatever pieces it comes in.
class BlockHasher {
 public:
  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      if (pending_.empty() && bytes.size() >= size) {  // the common case copies nothing
        hashes_.push_back(hash64(bytes.substr(0, size)));
        bytes.remove_prefix(size);
        continue;
      }
      const size_t take = std::min(bytes.size(), size - pending_.size());
      pending_.append(bytes.substr(0, take));
      bytes.remove_prefix(take);
      if (pending_.size() == size) flush();
    }
  }
  std::vector<uint64_t> finish() {
    if (!pending_.empty()) flush();
    return std::move(hashes_);
  }

 private:
  static constexpr size_t size = shard_block_bytes;
  void flush() {
    hashes_.push_back(hash64(pending_));
    pending_.clear();
  }
  std::string pending_;
  std::vector<uint64_t> hashes_;
};

}  // namespace

void ShardWriter::add(ShardDocument document, std::string_view name, std::span<const int32_t> ids) {
  document.first_token = static_cast<uint64_t>(tokens());
  const size_t old = ids_.size();
  if (id_bytes_ == 2) {
    append_ids<uint16_t>(ids_, ids);
  } else {
    append_ids<uint32_t>(ids_, ids);
  }
  document.token_hash = hash64(std::string_view(ids_).substr(old));
  if (documents_.empty() || name != last_name_) {
    document.name_offset = names_.size();
    names_.append(name).push_back('\0');
    last_name_ = name;
  } else {
    document.name_offset = documents_.back().name_offset;
  }
  text_bytes_ += document.text_bytes;
  documents_.push_back(document);
}

ShardEntry ShardWriter::write(const std::filesystem::path& path) {
  ShardHeader header{};
  header.magic = ShardHeader::expected_magic;
  header.version = ShardHeader::current_version;
  header.id_bytes = static_cast<uint32_t>(id_bytes_);
  header.tokens = static_cast<uint64_t>(tokens());
  header.documents = documents_.size();
  header.text_bytes = text_bytes_;
  header.table_offset = sizeof(ShardHeader) + (ids_.size() + 7) / 8 * 8;
  header.names_offset = header.table_offset + documents_.size() * sizeof(ShardDocument);
  header.blocks_offset = header.names_offset + (names_.size() + 7) / 8 * 8;
  ids_.resize(header.table_offset - sizeof(ShardHeader), '\0');
  names_.resize(header.blocks_offset - header.names_offset, '\0');

  BlockHasher hasher;
  for (const std::string_view part : {std::string_view(ids_), bytes_of(documents_), std::string_view(names_)}) {
    hasher.add(part);
  }
  const std::vector<uint64_t> blocks = hasher.finish();
  header.blocks = blocks.size();
  header.blocks_hash = hash64(bytes_of(blocks));
  header.file_bytes = header.blocks_offset + blocks.size() * sizeof(uint64_t);
  const std::string_view header_bytes(reinterpret_cast<const char*>(&header), sizeof header);
  header.header_hash = hash64(header_bytes.substr(0, sizeof header - sizeof header.header_hash));

  Hasher whole;
  write_file_durably(path, [&](int file, const std::filesystem::path& temporary) {
    for (const std::string_view part :
         {header_bytes, std::string_view(ids_), bytes_of(documents_), std::string_view(names_), bytes_of(blocks)}) {
      whole.add(part);
      write_all(file, part, temporary);
    }
  });

  ShardEntry entry{.file = path.filename().string(),
                   .bytes = static_cast<int64_t>(header.file_bytes),
                   .tokens = static_cast<int64_t>(header.tokens),
                   .documents = static_cast<int64_t>(header.documents),
                   .text_bytes = static_cast<int64_t>(header.text_bytes),
                   .checksum = whole.hex()};
  ids_.clear();
  documents_.clear();
  names_.clear();
  last_name_.clear();
  text_bytes_ = 0;
  return entry;
}

}  // namespace trireme::data
