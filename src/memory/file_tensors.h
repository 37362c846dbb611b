// Tensors that lie in a file without a name, for what is needed seldom: they take disk in place of memory.
//
// Each is an ordinary tensor in a map of the file: whoever reads or writes it does so page by page, through the page
// cache, until settle() empties that. Whoever knows better reads and writes pieces of the file around the page cache,
// which would otherwise hold what was meant to leave memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace trireme::memory {

/// What reads and writes, and their memory, are multiples of.
inline constexpr int64_t kFileBlock = 4096;
inline int64_t whole_blocks(int64_t bytes) { return (bytes + kFileBlock - 1) / kFileBlock * kFileBlock; }
/// Not initialised, at an address that FileTensors::read() and write() take. Counted as what the scope says.
at::Tensor empty_aligned(int64_t elements, at::ScalarType dtype);

class FileTensors {
 public:
  /// In `folder`, made if need be. `what` is kept there, and asked for by `option`: for messages.
  FileTensors(std::filesystem::path folder, std::string what, std::string option);
  ~FileTensors();
  FileTensors(const FileTensors&) = delete;
  FileTensors& operator=(const FileTensors&) = delete;

  /// A tensor of zeros, which must not outlive this. Throws where the file cannot have all its bytes.
  at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype);
  /// Where a tensor begins in the file; nothing: it is none of zeros(), or a part of one.
  std::optional<int64_t> offset_of(const at::Tensor& tensor) const;

  /// `offset` and the sizes are multiples of kFileBlock, and so are the addresses. From several threads at once.
  void read(int64_t offset, std::span<std::byte> to) const;
  void write(int64_t offset, std::span<const std::byte> from) const;
  /// What was read and written through the tensors leaves memory, and is in the file. Before read() and write(), which
  /// do not look there. Cheap where there is nothing.
  void settle() const;

  int64_t bytes() const { return bytes_; }
  /// Whether the file system lies on a drive, and reads and writes past the page cache.
  bool direct() const { return direct_; }

 private:
  struct Map {
    std::byte* address = nullptr;
    int64_t offset = 0, bytes = 0, used = 0;  // `bytes`: in whole blocks
  };

  void grow(int64_t bytes);

  std::filesystem::path folder_;
  std::string what_, option_;
  FileDescriptor file_;
  bool direct_ = false;
  int64_t bytes_ = 0;
  std::vector<Map> maps_;
};

}  // namespace trireme::memory
