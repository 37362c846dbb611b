#include "data/shard.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/hash.h"

namespace trireme::data {
namespace {

constexpr int64_t header_bytes = sizeof(ShardHeader);

}  // namespace

ShardFile::ShardFile(const std::filesystem::path& path, const ShardEntry& expected, int id_bytes)
    : path_(path), file_(path) {
  const std::string_view bytes = file_.text();
  const auto found = static_cast<int64_t>(bytes.size());
  if (found != expected.bytes) {
    throw_input("shard {} is {}: {} bytes were expected (manifest.json), {} found", path.string(),
                found < expected.bytes ? "cut short" : "too long", expected.bytes, found);
  }
  if (found < header_bytes) throw_input("shard {} has {} bytes, fewer than a header", path.string(), found);
  std::memcpy(&header_, bytes.data(), sizeof header_);
  if (header_.magic != ShardHeader::expected_magic)
    throw_input("{} is not a token shard: its first bytes differ", path.string());
  if (header_.version != ShardHeader::current_version) {
    throw_input("shard {} has format version {}; this program reads {}; prepare the data again with --force",
                path.string(), header_.version, ShardHeader::current_version);
  }
  if (header_.header_hash != hash64(bytes.substr(0, header_bytes - 8))) {
    throw_input("shard {} is damaged: the checksum of its header does not match", path.string());
  }
  const auto require = [&](std::string_view what, uint64_t want, uint64_t have) {
    if (want != have) {
      throw_input("shard {} does not belong to its manifest.json: {} {} were expected, {} found", path.string(), want,
                  what, have);
    }
  };
  require("bytes", static_cast<uint64_t>(expected.bytes), header_.file_bytes);
  require("tokens", static_cast<uint64_t>(expected.tokens), header_.tokens);
  require("documents", static_cast<uint64_t>(expected.documents), header_.documents);
  require("bytes of text", static_cast<uint64_t>(expected.text_bytes), header_.text_bytes);
  require("bytes an id", static_cast<uint64_t>(id_bytes), header_.id_bytes);
  // The header's own checksum holds, so these are consistent unless a program wrote nonsense: check what mapping relies
  // on.
  const bool ordered =
      header_.table_offset >= header_bytes + header_.tokens * header_.id_bytes &&
      header_.names_offset == header_.table_offset + header_.documents * sizeof(ShardDocument) &&
      header_.blocks_offset >= header_.names_offset && header_.table_offset % 8 == 0 &&
      header_.file_bytes == header_.blocks_offset + header_.blocks * 8 &&
      header_.blocks == (header_.blocks_offset - header_bytes + shard_block_bytes - 1) / shard_block_bytes;
  if (!ordered) throw_input("shard {} is damaged: its sections overlap", path.string());
  if (hash64(bytes.substr(header_.blocks_offset)) != header_.blocks_hash) {
    throw_input("shard {} is damaged: the table of checksums at its end does not match the header", path.string());
  }
  sound_ = std::vector<std::atomic<uint8_t>>(header_.blocks);
}

std::string_view ShardFile::block_bytes(int64_t block) const {
  const int64_t begin = header_bytes + block * shard_block_bytes;
  const int64_t end = std::min(begin + shard_block_bytes, static_cast<int64_t>(header_.blocks_offset));
  return file_.text().substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

bool ShardFile::block_is_sound(int64_t block) const {
  uint64_t expected = 0;
  std::memcpy(&expected, file_.bytes().data() + header_.blocks_offset + block * 8, 8);
  return hash64(block_bytes(block)) == expected;
}

void ShardFile::require_sound(int64_t begin, int64_t end) const {
  if (begin >= end) return;
  const int64_t last = (end - 1 - header_bytes) / shard_block_bytes;
  for (int64_t block = (begin - header_bytes) / shard_block_bytes; block <= last; ++block) {
    // Two threads may both check a block; both find the same, so relaxed order is enough.
    std::atomic<uint8_t>& sound = sound_[static_cast<size_t>(block)];
    if (sound.load(std::memory_order_relaxed) != 0) continue;
    if (!block_is_sound(block)) throw InputError(describe_damage(block));
    sound.store(1, std::memory_order_relaxed);
  }
}

bool ShardFile::table_is_sound() const {
  const auto begin = static_cast<int64_t>(header_.table_offset);
  const auto end = static_cast<int64_t>(header_.blocks_offset);
  if (begin >= end) return true;
  for (int64_t block = (begin - header_bytes) / shard_block_bytes;
       block <= (end - 1 - header_bytes) / shard_block_bytes; ++block) {
    // A block may hold the last tokens and the first rows of the table: then the table's own order decides.
    if (!block_is_sound(block) && header_bytes + block * shard_block_bytes >= begin) return false;
  }
  for (int64_t i = 0; i < documents(); ++i) {
    const ShardDocument& document = raw_document(i);
    const uint64_t end_token = i + 1 < documents() ? raw_document(i + 1).first_token : header_.tokens;
    if ((i == 0 && document.first_token != 0) || document.first_token >= end_token || end_token > header_.tokens)
      return false;
    if (header_.names_offset + document.name_offset >= header_.blocks_offset) return false;
  }
  return true;
}

const ShardDocument& ShardFile::raw_document(int64_t index) const {
  return reinterpret_cast<const ShardDocument*>(file_.bytes().data() + header_.table_offset)[index];
}

const ShardDocument& ShardFile::document(int64_t index) const {
  const auto begin = static_cast<int64_t>(header_.table_offset + static_cast<uint64_t>(index) * sizeof(ShardDocument));
  require_sound(begin, begin + static_cast<int64_t>(sizeof(ShardDocument)));
  return raw_document(index);
}

std::string ShardFile::raw_name(int64_t index) const {
  const std::string_view rest = file_.text().substr(header_.names_offset, header_.blocks_offset - header_.names_offset);
  const uint64_t offset = raw_document(index).name_offset;
  if (offset >= rest.size()) return "?";
  return std::string(rest.substr(offset, rest.find('\0', offset) - offset));
}

std::string ShardFile::name(int64_t index) const {
  document(index);
  std::string text = raw_name(index);
  const auto begin = static_cast<int64_t>(header_.names_offset + raw_document(index).name_offset);
  require_sound(begin, begin + static_cast<int64_t>(text.size()) + 1);
  return text;
}

int64_t ShardFile::tokens_of(int64_t index) const {
  const auto end = static_cast<int64_t>(index + 1 < documents() ? document(index + 1).first_token : header_.tokens);
  return end - static_cast<int64_t>(document(index).first_token);
}

int64_t ShardFile::document_of_token(int64_t token) const {
  int64_t low = 0;
  int64_t high = documents();
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (static_cast<int64_t>(document(middle).first_token) <= token ? low : high) = middle;
  }
  return low;
}

int32_t ShardFile::id_at(int64_t token) const {
  const std::byte* ids = file_.bytes().data() + header_bytes;
  if (header_.id_bytes == 2) return reinterpret_cast<const uint16_t*>(ids)[token];
  return static_cast<int32_t>(reinterpret_cast<const uint32_t*>(ids)[token]);
}

void ShardFile::copy_tokens(int64_t begin, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  TRIREME_CHECK(begin >= 0 && begin + count <= tokens(), "tokens [{}, {}) of {}", begin, begin + count, tokens());
  const int64_t width = header_.id_bytes;
  require_sound(header_bytes + begin * width, header_bytes + (begin + count) * width);
  const std::byte* ids = file_.bytes().data() + header_bytes;
  if (width == 2) {
    std::copy_n(reinterpret_cast<const uint16_t*>(ids) + begin, count, out.data());
  } else {
    std::copy_n(reinterpret_cast<const uint32_t*>(ids) + begin, count, out.data());
  }
}

std::string_view ShardFile::token_bytes(int64_t index) const {
  const uint64_t first = raw_document(index).first_token;
  const uint64_t end = index + 1 < documents() ? raw_document(index + 1).first_token : header_.tokens;
  return file_.text().substr(header_bytes + first * header_.id_bytes, (end - first) * header_.id_bytes);
}

std::string ShardFile::describe_document(int64_t index) const {
  return fmt::format("document {} of the shard ({})", index, raw_name(index));
}

std::string ShardFile::describe_damage(int64_t block) const {
  const int64_t begin = header_bytes + block * shard_block_bytes;
  const int64_t end = begin + static_cast<int64_t>(block_bytes(block).size());
  std::string text =
      fmt::format("shard {} is damaged: the checksum of bytes {} to {} does not match", path_.string(), begin, end);
  if (!table_is_sound()) return text + "; it lies in, or beside damage in, the table of documents";
  std::string names;
  int count = 0;
  for (int64_t i = 0; i < documents(); ++i) {
    const std::string_view bytes = token_bytes(i);
    const auto at = static_cast<int64_t>(bytes.data() - file_.text().data());
    if (at >= end || at + static_cast<int64_t>(bytes.size()) <= begin) continue;
    if (hash64(bytes) == raw_document(i).token_hash) continue;
    if (++count <= 5) names += (names.empty() ? "" : ", ") + describe_document(i);
  }
  if (count == 0) return text + "; no token is touched, but the table of documents";
  if (count > 5) names += fmt::format(" and {} more", count - 5);
  return text + "; damaged: " + names + "; prepare the data again with --force, or restore the file";
}

std::vector<std::string> ShardFile::verify(const std::string& checksum, int64_t vocab_size, int32_t end_of_text) const {
  std::vector<std::string> faults;
  bool blocks_sound = true;
  for (int64_t block = 0; block < static_cast<int64_t>(header_.blocks); ++block) blocks_sound &= block_is_sound(block);
  if (!table_is_sound()) {
    faults.push_back(fmt::format("shard {}: the table of documents is damaged", path_.string()));
    return faults;
  }
  uint64_t text_bytes = 0;
  for (int64_t i = 0; i < documents(); ++i) {
    const ShardDocument& row = raw_document(i);
    text_bytes += row.text_bytes;
    const auto end = static_cast<int64_t>(i + 1 < documents() ? raw_document(i + 1).first_token : header_.tokens);
    if (hash64(token_bytes(i)) != row.token_hash) {
      faults.push_back(fmt::format("shard {}: {} is damaged: the checksum of its tokens does not match", path_.string(),
                                   describe_document(i)));
      continue;
    }
    if (id_at(end - 1) != end_of_text) {
      faults.push_back(fmt::format("shard {}: {} ends with token {}, not with end-of-text ({})", path_.string(),
                                   describe_document(i), id_at(end - 1), end_of_text));
    }
    for (auto token = static_cast<int64_t>(row.first_token); token < end; ++token) {
      if (id_at(token) >= 0 && id_at(token) < vocab_size) continue;
      faults.push_back(fmt::format("shard {}: {}: token {} has id {}, and the vocabulary has {}", path_.string(),
                                   describe_document(i), token, id_at(token), vocab_size));
      break;
    }
  }
  if (!blocks_sound && faults.empty()) {
    faults.push_back(fmt::format("shard {}: the table of documents or the names in it are damaged", path_.string()));
  }
  if (text_bytes != header_.text_bytes) {
    faults.push_back(fmt::format("shard {}: the documents have {} bytes of text, the header says {}", path_.string(),
                                 text_bytes, header_.text_bytes));
  }
  if (faults.empty() && hash_hex(file_.text()) != checksum) {
    faults.push_back(
        fmt::format("shard {}: sound in itself, but its checksum is {} and manifest.json says {}: is it of another "
                    "preparation?",
                    path_.string(), hash_hex(file_.text()), checksum));
  }
  return faults;
}

}  // namespace trireme::data
