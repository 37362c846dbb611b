#include "nn/offload.h"

#include <ATen/ATen.h>

namespace trireme::nn {

ActivationStore::ActivationStore(const std::filesystem::path& folder) {
  make_directories(folder);
  path_ = folder;
  file_ = open_nameless(folder, "make a file for activations in");
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
  write_exactly(file_.get(), {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()}, handle.offset,
                path_);
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
