#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace trireme {

void FileDescriptor::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

FileDescriptor open_file(const std::filesystem::path& path, int flags, std::string_view what, int mode) {
  int fd;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) throw_errno(what, path.string(), errno);
  return FileDescriptor(fd);
}

void write_all(int fd, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno("write", path.string(), errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void read_exactly(int fd, std::span<std::byte> into, int64_t offset, const std::filesystem::path& path) {
  while (!into.empty()) {
    const ssize_t got = ::pread(fd, into.data(), into.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("read", path.string(), errno);
    if (got == 0)
      throw_input("{} is cut short: {} more bytes were expected at offset {}", path.string(), into.size(), offset);
    into = into.subspan(static_cast<size_t>(got));
    offset += got;
  }
}

void write_exactly(int fd, std::span<const std::byte> from, int64_t offset, const std::filesystem::path& path) {
  while (!from.empty()) {
    const ssize_t written = ::pwrite(fd, from.data(), from.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw_errno("write", path.string(), written < 0 ? errno : ENOSPC);
    from = from.subspan(static_cast<size_t>(written));
    offset += written;
  }
}

FileDescriptor open_nameless(const std::filesystem::path& folder, std::string_view what) {
  FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file) return file;
  // Not every file system has files without a name: one that loses it at once.
  std::string name = (folder / "nameless.XXXXXX").string();
  file = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) throw_errno(what, folder.string(), errno);
  ::unlink(name.c_str());
  return file;
}

FileDescriptor reopen_terminal(int fd) {
  if (fd < 0 || ::isatty(fd) == 0) return {};
  return FileDescriptor(
      ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

std::string read_file(const std::filesystem::path& path) {
  const FileDescriptor file = open_file(path, O_RDONLY, "open");
  std::string content;
  std::string piece(1 << 16, '\0');
  for (;;) {
    const ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("read", path.string(), errno);
    if (got == 0) return content;
    content.append(piece.data(), static_cast<size_t>(got));
  }
}

void sync_directory(const std::filesystem::path& folder) {
  const FileDescriptor file = open_file(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY, "open folder");
  // Some file systems (shared folders of virtual machines) know no such call: what they promise is then all there is.
  if (::fsync(file.get()) != 0 && errno != EINVAL && errno != EOPNOTSUPP)
    throw_errno("sync folder", folder.string(), errno);
}

void make_directories(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_errno("make folder", folder.string(), error.value());
}

void write_file_durably(const std::filesystem::path& path, std::string_view content) {
  write_file_durably(path, [&](int fd, const std::filesystem::path& temporary) { write_all(fd, content, temporary); });
}

void write_file_durably(const std::filesystem::path& path,
                        const std::function<void(int, const std::filesystem::path&)>& write) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  try {
    const FileDescriptor file = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC, "write");
    write(file.get(), temporary);
    if (::fsync(file.get()) != 0) throw_errno("sync", temporary.string(), errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw_errno("rename to", path.string(), errno);
  } catch (...) {
    ::unlink(temporary.c_str());  // on a full disk, its part would keep it full
    throw;
  }
  sync_directory(path.parent_path());
}

MappedFile::MappedFile(const std::filesystem::path& path) : MappedFile(open_file(path, O_RDONLY, "open"), path) {}

MappedFile::MappedFile(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) throw_errno("stat", path.string(), errno);
  if (S_ISDIR(info.st_mode)) throw_errno("read", path.string(), EISDIR);
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) throw_errno("map", path.string(), errno);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace trireme
