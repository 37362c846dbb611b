#include "nn/offload.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"

namespace trireme::nn {

ActivationStore::ActivationStore(const std::filesystem::path& folder) {
  make_directories(folder);
  path_ = folder;
  file_ = FileDescriptor(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file_) return;
  // Not every file system has files without a name: one that loses it at once.
  std::string name = (folder / "activations.XXXXXX").string();
  file_ = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC));
  if (!file_) throw_errno("make a file for activations in", folder.string(), errno);
  ::unlink(name.c_str());
}

ActivationStore::Handle ActivationStore::put(const at::Tensor& x) {
  Handle handle{{}, -1, x.sizes().vec(), x.scalar_type(), x.device()};
  const at::Tensor host = x.detach().to(at::kCPU).contiguous();
  if (!file_) {
    handle.host = host;
    return handle;
  }
  const auto bytes = static_cast<int64_t>(host.nbytes());
  std::vector<int64_t>& places = free_[bytes];
  if (places.empty()) {
    places.push_back(end_);
    end_ += bytes;
  }
  handle.offset = places.back();
  places.pop_back();
  const char* from = static_cast<const char*>(host.const_data_ptr());
  for (int64_t done = 0; done < bytes;) {
    const ssize_t written = ::pwrite(file_.get(), from + done, static_cast<size_t>(bytes - done), handle.offset + done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw_errno("write activations to", path_.string(), written < 0 ? errno : ENOSPC);
    done += written;
  }
  return handle;
}

at::Tensor ActivationStore::take(const Handle& handle) {
  if (handle.offset < 0) return handle.host.to(handle.device);
  const at::Tensor host = at::empty(handle.shape, handle.dtype);
  const auto bytes = static_cast<int64_t>(host.nbytes());
  read_exactly(file_.get(), {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()}, handle.offset, path_);
  free_[bytes].push_back(handle.offset);
  return host.to(handle.device);
}

}  // namespace trireme::nn
