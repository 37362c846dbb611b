#include "memory/file_tensors.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"

namespace trireme::memory {

at::Tensor empty_aligned(int64_t elements, at::ScalarType dtype) {
  const int64_t bytes = whole_blocks(elements * static_cast<int64_t>(c10::elementSize(dtype)));
  const at::Tensor memory = at::empty({bytes + kFileBlock}, at::kByte);
  const auto address = reinterpret_cast<uintptr_t>(memory.data_ptr());
  const auto skipped = static_cast<int64_t>((kFileBlock - address % kFileBlock) % kFileBlock);
  return memory.narrow(0, skipped, bytes).view(dtype).narrow(0, 0, elements);
}

FileTensors::FileTensors(std::filesystem::path folder, std::string what, std::string option)
    : folder_(std::move(folder)), what_(std::move(what)), option_(std::move(option)) {
  make_directories(folder_);
  file_ = open_nameless(folder_, fmt::format("make a file for {} in", what_));
  // Of a file system in memory the file is the page cache, whatever it says.
  struct statfs system {};
  const bool on_disk = ::fstatfs(file_.get(), &system) != 0 ||
                       (system.f_type != TMPFS_MAGIC && static_cast<uint32_t>(system.f_type) != RAMFS_MAGIC);
  direct_ = on_disk && ::fcntl(file_.get(), F_SETFL, O_DIRECT) == 0;
}

FileTensors::~FileTensors() {
  for (const Map& map : maps_) ::munmap(map.address, static_cast<size_t>(map.bytes));
}

// All of it now: a disk that is too small is better told before the first step.
void FileTensors::grow(int64_t bytes) {
  const int error = ::posix_fallocate(file_.get(), bytes_, bytes);
  if (error == EOPNOTSUPP || error == EINVAL) {
    constexpr int64_t kStretch = 256 * kFileBlock;
    const at::Tensor block = empty_aligned(kStretch, at::kByte).zero_();
    const auto* from = static_cast<const std::byte*>(block.const_data_ptr());
    for (int64_t at = 0; at < bytes; at += kStretch)
      write(bytes_ + at, {from, static_cast<size_t>(std::min(kStretch, bytes - at))});
  } else if (error != 0) {
    throw_errno(fmt::format("make room for {} bytes of {} ({}) in", bytes_ + bytes, what_, option_), folder_.string(),
                error);
  }
  bytes_ += bytes;
}

at::Tensor FileTensors::zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  const int64_t elements = c10::multiply_integers(sizes);
  if (elements == 0) return at::zeros(sizes, dtype);
  const int64_t used = elements * static_cast<int64_t>(c10::elementSize(dtype));
  Map map{nullptr, bytes_, whole_blocks(used), used};
  grow(map.bytes);
  void* address = ::mmap(nullptr, static_cast<size_t>(map.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(),
                         static_cast<off_t>(map.offset));
  if (address == MAP_FAILED) throw_errno(fmt::format("map the file of {} in", what_), folder_.string(), errno);
  map.address = static_cast<std::byte*>(address);
  maps_.push_back(map);
  return at::from_blob(address, sizes, at::TensorOptions(dtype));
}

std::optional<int64_t> FileTensors::offset_of(const at::Tensor& tensor) const {
  const auto found = std::ranges::find(maps_, static_cast<const std::byte*>(tensor.const_data_ptr()),
                                       [](const Map& map) -> const std::byte* { return map.address; });
  if (found == maps_.end() || static_cast<int64_t>(tensor.nbytes()) != found->used) return std::nullopt;
  return found->offset;
}

void FileTensors::read(int64_t offset, std::span<std::byte> to) const {
  read_exactly(file_.get(), to, offset, folder_);
}

void FileTensors::write(int64_t offset, std::span<const std::byte> from) const {
  write_exactly(file_.get(), from, offset, folder_);
  if (direct_) return;
  // Out of the page cache again.
  const auto bytes = static_cast<off_t>(from.size());
  ::sync_file_range(file_.get(), offset, bytes,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  ::posix_fadvise(file_.get(), offset, bytes, POSIX_FADV_DONTNEED);
}

void FileTensors::settle() const {
  // To the drive, whose own cache need not be emptied: after a crash there is no file.
  if (::sync_file_range(file_.get(), 0, 0,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) != 0)
    throw_errno(fmt::format("write {} to", what_), folder_.string(), errno);
  for (const Map& map : maps_) ::madvise(map.address, static_cast<size_t>(map.bytes), MADV_DONTNEED);
  ::posix_fadvise(file_.get(), 0, bytes_, POSIX_FADV_DONTNEED);
}

}  // namespace trireme::memory
