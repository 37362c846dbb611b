#include "checkpoint/file_writer.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace trireme::checkpoint {
namespace {

constexpr int64_t kChunkBytes = int64_t{8} << 20;

/// A second request to stop may come during the save that the first one asked for, and interrupts even where handlers
/// restart calls (fallocate on tmpfs).
template <typename Call>
int uninterrupted(Call call) {
  int result;
  do {
    result = call();
  } while (result != 0 && errno == EINTR);
  return result;
}

class Writer {
 public:
  Writer(const std::filesystem::path& path, int64_t file_bytes)
      : path_(path), file_bytes_(file_bytes), file_(open_file(path, O_WRONLY | O_CREAT | O_EXCL, "make")) {
    // Reserving the blocks tells a full disk before minutes of writing. Not every file system can.
    if (file_bytes > 0 && uninterrupted([&] { return ::fallocate(file_.get(), 0, 0, file_bytes); }) != 0 &&
        errno != EOPNOTSUPP && errno != ENOSYS) {
      fail("write", errno);
    }
    buffer_.reserve(kChunkBytes);
  }

  /// Appends. Small pieces are gathered, so that a file of many small tensors is not a file of many small writes.
  void add(std::string_view bytes) {
    if (static_cast<int64_t>(buffer_.size() + bytes.size()) > kChunkBytes) flush();
    if (static_cast<int64_t>(bytes.size()) >= kChunkBytes) {
      write_at(bytes, position_);
      position_ += static_cast<int64_t>(bytes.size());
    } else {
      buffer_ += bytes;
    }
  }

  void flush() {
    write_at(buffer_, position_);
    position_ += static_cast<int64_t>(buffer_.size());
    buffer_.clear();
  }

  void rewrite_start(std::string_view bytes) { write_at(bytes, 0); }

  void sync() {
    if (uninterrupted([&] { return ::fsync(file_.get()); }) != 0) fail("sync", errno);
  }

  void close() {
    // Network file systems report a full disk as late as here.
    // Interrupted, the descriptor is closed all the same.
    if (::close(file_.release()) != 0 && errno != EINTR) fail("close", errno);
  }

 private:
  void write_at(std::string_view bytes, int64_t offset) {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(file_.get(), bytes.data(), bytes.size(), offset);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write", errno);
      // Starts the transfer to disk now, under the hashing of the next chunk, rather than all at fsync. A hint only.
      (void)::sync_file_range(file_.get(), offset, written, SYNC_FILE_RANGE_WRITE);
      bytes.remove_prefix(static_cast<size_t>(written));
      offset += written;
    }
  }

  [[noreturn]] void fail(std::string_view what, int error) {
    struct statvfs space {};
    if ((error == ENOSPC || error == EDQUOT) && ::statvfs(path_.parent_path().c_str(), &space) == 0) {
      throw_input("cannot {} {}: {} (the file needs {} bytes, about {} are free)", what, path_.string(),
                  std::strerror(error), file_bytes_, space.f_bavail * space.f_frsize);
    }
    if (error == EFBIG) {
      throw_input("cannot {} {}: {} (the file needs {} bytes; see `ulimit -f`)", what, path_.string(),
                  std::strerror(error), file_bytes_);
    }
    throw_errno(what, path_.string(), error);
  }

  const std::filesystem::path& path_;
  int64_t file_bytes_;
  FileDescriptor file_;
  std::string buffer_;
  int64_t position_ = 0;
};

}  // namespace

WrittenFile write_rank_file(const std::filesystem::path& path, std::vector<Part> parts,
                            const std::function<void(std::string_view point)>& hook) {
  std::ranges::sort(parts, [](const Part& a, const Part& b) {
    return std::tuple(-size_of(a.stored.dtype), std::string_view(a.stored.key)) <
           std::tuple(-size_of(b.stored.dtype), std::string_view(b.stored.key));
  });
  std::vector<StoredFragment> stored;
  int64_t data_bytes = 0;
  for (const Part& part : parts) {
    stored.push_back(part.stored);
    stored.back().begin = data_bytes;
    stored.back().bytes = elements(part.stored.box) * size_of(part.stored.dtype);
    data_bytes += stored.back().bytes;
  }
  std::string header = encode_header(stored);
  WrittenFile result;
  result.bytes = static_cast<int64_t>(header.size()) + data_bytes;

  Writer writer(path, result.bytes);
  writer.add(header);
  int64_t done = 0;
  bool told_half = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    Hasher hasher;
    for (int64_t offset = 0; offset < stored[i].bytes; offset += kChunkBytes) {
      const int64_t count = std::min(kChunkBytes, stored[i].bytes - offset);
      const std::string_view chunk(reinterpret_cast<const char*>(parts[i].data) + offset, static_cast<size_t>(count));
      hasher.add(chunk);
      writer.add(chunk);
      done += count;
      if (!told_half && 2 * done >= data_bytes) {
        told_half = true;
        writer.flush();
        hook("in_file");
      }
    }
    stored[i].checksum = hasher.hex();
  }
  writer.flush();

  const size_t length = header.size();
  header = encode_header(stored);
  TRIREME_CHECK(header.size() == length, "the header grew from {} to {} bytes", length, header.size());
  result.header_checksum = hash_hex(header);
  writer.rewrite_start(header);
  hook("after_file");
  writer.sync();
  writer.close();
  hook("after_fsync");
  return result;
}

}  // namespace trireme::checkpoint
