#include "checkpoint/reader.h"

#include <fcntl.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/index.h"

namespace trireme::checkpoint {
namespace {

constexpr int64_t kChunkBytes = int64_t{8} << 20;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string describe(const LogicalTensor& tensor) {
  return fmt::format("{} {}", to_text(tensor.shape), name_of(tensor.dtype));
}

/// Rows of dimension 0 [first, first + count) of a box; a scalar is one row.
Box rows_of(const Box& box, int64_t first, int64_t count) {
  Box rows = box;
  if (rows.size.empty()) return rows;
  rows.offset[0] += first;
  rows.size[0] = count;
  return rows;
}

/// How a box is cut into blocks of rows of about kChunkBytes.
struct Rows {
  Rows(const Box& box, int64_t element_bytes)
      : count(box.size.empty() ? 1 : box.size[0]),
        bytes(count == 0 ? 0 : elements(box) / count * element_bytes),
        per_chunk(std::max<int64_t>(1, bytes == 0 ? count : kChunkBytes / bytes)) {}
  int64_t count;
  int64_t bytes;  ///< of one row
  int64_t per_chunk;
};

/// Whether `part` is one run of memory in a buffer that holds `box`.
bool contiguous_in(const Box& part, const Box& box) {
  return part.size.empty() || std::equal(part.size.begin() + 1, part.size.end(), box.size.begin() + 1);
}

void check_checksum(const StoredFragment& fragment, const std::string& found, const std::string& place) {
  if (found == fragment.checksum) return;
  throw_input("tensor {} in {} is damaged: its checksum is {}, {} was expected", fragment.name, place, found,
              fragment.checksum);
}

/// The first pair of boxes with a common element. `pieces` is sorted by offset, so only neighbours in dimension 0 need
/// a look.
std::optional<std::pair<size_t, size_t>> find_overlap(const std::vector<const StoredFragment*>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Box& box = pieces[i]->box;
    for (size_t j = i + 1; j < pieces.size(); ++j) {
      if (!box.size.empty() && pieces[j]->box.offset[0] >= box.offset[0] + box.size[0]) break;
      if (elements(box) > 0 && intersect(box, pieces[j]->box)) return std::pair(i, j);
    }
  }
  return std::nullopt;
}

}  // namespace

const StoredFragment& CheckpointReader::fragment(const Piece& piece) const {
  return files_[piece.file].header.fragments[piece.fragment];
}

std::string CheckpointReader::place(const Piece& piece) const { return (folder_ / files_[piece.file].name).string(); }

CheckpointReader CheckpointReader::open(const std::filesystem::path& folder) {
  Index index = read_index(folder);
  CheckpointReader reader;
  reader.folder_ = folder;
  reader.step_ = index.step;
  reader.world_size_ = index.world_size;
  reader.state_ = std::move(index.state);
  reader.layout_ = std::move(index.layout);
  reader.tensors_ = std::move(index.tensors);

  std::vector<std::string> faults;
  for (const IndexFile& listed : index.files) {
    const std::filesystem::path path = folder / listed.name;
    try {
      std::error_code error;
      const auto bytes = std::filesystem::file_size(path, error);
      if (error) throw_errno("open", path.string(), error.value());
      if (static_cast<int64_t>(bytes) != listed.bytes) {
        throw_input("{} has {} bytes, {} were written: it is {}", path.string(), bytes, listed.bytes,
                    static_cast<int64_t>(bytes) < listed.bytes ? "cut short" : "too long");
      }
      SafetensorsHeader header = read_header(path);
      if (header.checksum != listed.header_checksum) {
        throw_input("the header of {} is damaged: its checksum is {}, {} was expected", path.string(), header.checksum,
                    listed.header_checksum);
      }
      reader.files_.push_back({listed.name, listed.bytes, std::move(header)});
    } catch (const Error& error) {
      faults.emplace_back(error.what());
    }
  }
  if (!faults.empty()) throw InputError(std::move(faults));

  for (size_t file = 0; file < reader.files_.size(); ++file) {
    const auto& fragments = reader.files_[file].header.fragments;
    for (size_t i = 0; i < fragments.size(); ++i) reader.pieces_[fragments[i].name].push_back({file, i});
  }
  for (auto& [name, pieces] : reader.pieces_) {
    std::ranges::sort(pieces, {}, [&](const Piece& piece) { return reader.fragment(piece).box.offset; });
    const LogicalTensor* tensor = reader.find(name);
    if (tensor == nullptr) {
      faults.push_back(fmt::format("{} holds {}, which {} does not list", reader.place(pieces[0]), name, kIndexName));
    }
  }
  for (const LogicalTensor& tensor : reader.tensors_) {
    std::vector<const StoredFragment*> stored;
    int64_t covered = 0;
    for (const Piece& piece : reader.pieces_[tensor.name]) {
      const StoredFragment& fragment = reader.fragment(piece);
      if (fragment.shape != tensor.shape || fragment.dtype != tensor.dtype) {
        faults.push_back(fmt::format("{} has {} as {} {}, {} lists {}", reader.place(piece), tensor.name,
                                     to_text(fragment.shape), name_of(fragment.dtype), kIndexName, describe(tensor)));
        continue;
      }
      stored.push_back(&fragment);
      covered += elements(fragment.box);
    }
    if (stored.size() != reader.pieces_[tensor.name].size()) continue;
    if (covered != elements(tensor.shape) || find_overlap(stored)) {
      faults.push_back(fmt::format("the files of {} hold {} elements of {}, {}; {} and no overlap were expected",
                                   folder.string(), covered, tensor.name, describe(tensor), elements(tensor.shape)));
    }
  }
  if (!faults.empty()) throw InputError(std::move(faults));
  return reader;
}

const LogicalTensor* CheckpointReader::find(std::string_view name) const {
  const auto found =
      std::ranges::lower_bound(tensors_, name, {}, [](const LogicalTensor& t) -> std::string_view { return t.name; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

int64_t CheckpointReader::bytes() const {
  int64_t total = 0;
  for (const File& file : files_) total += file.bytes;
  return total;
}

namespace {

/// What keeps `needed` from being filled from `reader`; empty when nothing does.
std::string mismatch(const CheckpointReader& reader, const LogicalTensor& needed) {
  const LogicalTensor* found = reader.find(needed.name);
  if (found == nullptr) {
    std::vector<std::string> names;
    for (const LogicalTensor& tensor : reader.tensors()) names.push_back(tensor.name);
    const std::string near = nearest(needed.name, names);
    return fmt::format("checkpoint has no {}, the run needs it as {}{}", needed.name, describe(needed),
                       near.empty() ? "" : fmt::format(" (the nearest name is {})", near));
  }
  if (*found == needed) return "";
  return fmt::format("checkpoint has {} as {}, the run needs {}", needed.name, describe(*found), describe(needed));
}

}  // namespace

void CheckpointReader::require(std::span<const LogicalTensor> needed) const {
  std::vector<std::string> faults;
  std::vector<std::string_view> names;
  for (const LogicalTensor& tensor : needed) {
    names.push_back(tensor.name);
    if (std::string fault = mismatch(*this, tensor); !fault.empty()) faults.push_back(std::move(fault));
  }
  std::ranges::sort(names);
  for (const LogicalTensor& tensor : tensors_) {
    if (!std::ranges::binary_search(names, std::string_view(tensor.name))) {
      faults.push_back(
          fmt::format("checkpoint has {} as {}, the run has no such tensor", tensor.name, describe(tensor)));
    }
  }
  if (!faults.empty()) throw InputError(std::move(faults));
}

void CheckpointReader::read(std::span<const Target> targets) const {
  std::vector<std::string> faults;
  for (const Target& target : targets) {
    check_fragment({target.name, target.shape, target.box, target.dtype, target.data, 0, 1});
    if (std::string fault = mismatch(*this, {target.name, target.shape, target.dtype}); !fault.empty()) {
      faults.push_back(std::move(fault));
    }
  }
  if (!faults.empty()) {
    std::ranges::sort(faults);  // several boxes of one tensor have one fault
    faults.erase(std::unique(faults.begin(), faults.end()), faults.end());
    throw InputError(std::move(faults));
  }

  // By file and position, which targets take from a stored fragment.
  std::map<std::pair<size_t, size_t>, std::vector<const Target*>> takers;
  for (const Target& target : targets) {
    if (elements(target.box) == 0) continue;
    for (const Piece& piece : pieces_.at(target.name)) {
      if (intersect(fragment(piece).box, target.box)) takers[{piece.file, piece.fragment}].push_back(&target);
    }
  }
  std::vector<std::byte> buffer;
  size_t open_index = files_.size();
  FileDescriptor file;
  for (const auto& [position, wanting] : takers) {
    const Piece piece{position.first, position.second};
    const StoredFragment& stored = fragment(piece);
    const std::filesystem::path path = folder_ / files_[piece.file].name;
    if (piece.file != open_index) {
      file = open_file(path, O_RDONLY, "open");
      open_index = piece.file;
    }
    const int64_t element_bytes = size_of(stored.dtype);
    const Rows rows(stored.box, element_bytes);
    Hasher hasher;
    for (int64_t row = 0; row < rows.count; row += rows.per_chunk) {
      const int64_t count = std::min(rows.per_chunk, rows.count - row);
      const Box chunk = rows_of(stored.box, row, count);
      const int64_t from = files_[piece.file].header.data_offset + stored.begin + row * rows.bytes;
      const auto chunk_bytes = static_cast<size_t>(count * rows.bytes);
      const Target& first = *wanting.front();
      // One target that takes the chunk whole, into one run of memory, needs no copy.
      if (wanting.size() == 1 && intersect(chunk, first.box) == chunk && contiguous_in(chunk, first.box)) {
        const int64_t first_row = chunk.size.empty() ? 0 : chunk.offset[0] - first.box.offset[0];
        const std::span<std::byte> into(first.data + first_row * rows.bytes, chunk_bytes);
        read_exactly(file.get(), into, from, path);
        hasher.add(as_text(into));
        continue;
      }
      buffer.resize(std::max(buffer.size(), chunk_bytes));
      const std::span<std::byte> values(buffer.data(), chunk_bytes);
      read_exactly(file.get(), values, from, path);
      hasher.add(as_text(values));
      for (const Target* target : wanting) {
        if (const auto part = intersect(chunk, target->box)) {
          copy_box(*part, chunk, values.data(), target->box, target->data, element_bytes);
        }
      }
    }
    check_checksum(stored, hasher.hex(), path.string());
  }
}

void CheckpointReader::stream(const LogicalTensor& tensor,
                              const std::function<void(std::span<const std::byte>)>& sink) const {
  const std::string fault = mismatch(*this, tensor);
  TRIREME_CHECK(fault.empty(), "{}", fault);
  if (elements(tensor.shape) == 0) return;
  const auto& pieces = pieces_.at(tensor.name);
  const int64_t element_bytes = size_of(tensor.dtype);
  const Box all = whole(tensor.shape);
  const Rows rows(all, element_bytes);

  std::vector<FileDescriptor> files;
  std::vector<std::unique_ptr<Hasher>> hashers;
  for (const Piece& piece : pieces) {
    files.push_back(open_file(place(piece), O_RDONLY, "open"));
    hashers.push_back(std::make_unique<Hasher>());
  }
  std::vector<std::byte> block(static_cast<size_t>(std::min(rows.per_chunk, rows.count) * rows.bytes)), scratch;
  for (int64_t row = 0; row < rows.count; row += rows.per_chunk) {
    const Box chunk = rows_of(all, row, std::min(rows.per_chunk, rows.count - row));
    for (size_t i = 0; i < pieces.size(); ++i) {
      // The rows of a piece that lie in this block are one run in its file, and blocks come in order: so each piece is
      // read once from front to back, and its checksum can be taken on the way.
      const StoredFragment& stored = fragment(pieces[i]);
      const std::optional<Box> part = intersect(chunk, stored.box);
      if (!part) continue;
      const Rows piece_rows(stored.box, element_bytes);
      const int64_t first = part->size.empty() ? 0 : part->offset[0] - stored.box.offset[0];
      const int64_t from = files_[pieces[i].file].header.data_offset + stored.begin + first * piece_rows.bytes;
      const auto bytes = static_cast<size_t>(elements(*part) * element_bytes);
      std::span<std::byte> values;
      if (contiguous_in(*part, chunk)) {
        const int64_t at = part->size.empty() ? 0 : part->offset[0] - chunk.offset[0];
        values = std::span(block).subspan(static_cast<size_t>(at * rows.bytes), bytes);
      } else {
        scratch.resize(std::max(scratch.size(), bytes));
        values = std::span(scratch).first(bytes);
      }
      read_exactly(files[i].get(), values, from, place(pieces[i]));
      hashers[i]->add(as_text(values));
      if (!contiguous_in(*part, chunk)) copy_box(*part, *part, values.data(), chunk, block.data(), element_bytes);
      if (first + (part->size.empty() ? 1 : part->size[0]) == piece_rows.count) {
        check_checksum(stored, hashers[i]->hex(), place(pieces[i]));
      }
    }
    sink(std::span(block).first(static_cast<size_t>(elements(chunk) * element_bytes)));
  }
}

void CheckpointReader::verify(int64_t part, int64_t parts) const {
  std::vector<std::string> faults;
  std::vector<std::byte> buffer;
  int64_t number = 0;
  for (size_t f = 0; f < files_.size(); ++f) {
    const std::filesystem::path path = folder_ / files_[f].name;
    FileDescriptor file;
    for (const StoredFragment& stored : files_[f].header.fragments) {
      if (number++ % parts != part) continue;
      try {
        if (!file) file = open_file(path, O_RDONLY, "open");
        Hasher hasher;
        for (int64_t offset = 0; offset < stored.bytes; offset += kChunkBytes) {
          buffer.resize(static_cast<size_t>(std::min(kChunkBytes, stored.bytes - offset)));
          read_exactly(file.get(), buffer, files_[f].header.data_offset + stored.begin + offset, path);
          hasher.add(as_text(buffer));
        }
        check_checksum(stored, hasher.hex(), path.string());
      } catch (const Error& error) {
        faults.emplace_back(error.what());
      }
    }
  }
  if (!faults.empty()) throw InputError(std::move(faults));
}

}  // namespace trireme::checkpoint
