// Files: whole reads, durable writes, read-only maps. Every failure names the path and the reason (see throw_errno).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

/// A file descriptor that closes itself.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// The terminal behind `fd`, opened anew for writing without waiting: a terminal says "ready" when it takes one byte,
/// and a blocking write of more sleeps until somebody reads. O_NONBLOCK belongs to the open file, which the shell
/// shares, so it cannot be set on `fd` itself. Empty when `fd` is no terminal, or cannot be opened.
FileDescriptor reopen_terminal(int fd);

/// The whole content of a file.
std::string read_file(const std::filesystem::path& path);

/// Writes a file so that after a crash there is either the old content or the new: a temporary beside it, fsync,
/// rename, fsync of the folder.
void write_file_durably(const std::filesystem::path& path, std::string_view content);
/// The same for content that comes in parts: `write(descriptor, path of the temporary)` writes all of it. Whatever
/// fails, the temporary goes.
void write_file_durably(const std::filesystem::path& path,
                        const std::function<void(int, const std::filesystem::path&)>& write);

/// fsync of a folder, which makes renames and new names in it durable.
void sync_directory(const std::filesystem::path& folder);

/// Makes a folder and its parents; an error names it.
void make_directories(const std::filesystem::path& folder);

/// open(2) with an error that names the path; `what` completes "cannot ... PATH". Always close-on-exec.
FileDescriptor open_file(const std::filesystem::path& path, int flags, std::string_view what, int mode = 0644);
/// Writes all bytes (write(2) in a loop); the error names `path`.
void write_all(int fd, std::string_view bytes, const std::filesystem::path& path);
/// Reads exactly `into.size()` bytes at `offset`; throws InputError naming `path` when the file is shorter.
void read_exactly(int fd, std::span<std::byte> into, int64_t offset, const std::filesystem::path& path);

/// Writes all bytes at `offset`.
void write_exactly(int fd, std::span<const std::byte> from, int64_t offset, const std::filesystem::path& path);
/// A new file in `folder` that has no name any more: whatever happens, nothing of it stays. `what` completes "cannot
/// ... FOLDER".
FileDescriptor open_nameless(const std::filesystem::path& folder, std::string_view what);

/// A read-only memory map of a whole file. Empty files map to an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  /// Of an open file; `path` is for messages. The mapping outlives the descriptor.
  MappedFile(const FileDescriptor& file, const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace trireme
