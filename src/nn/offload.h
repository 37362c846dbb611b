// A slower tier for activations that backward will want again: the host's memory for those of a device, a file for
// those of the host (Rajbhandari et al., "ZeRO-Infinity", arXiv:2104.07857, section 5.1.2, offload block inputs
// likewise).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <vector>

#include "base/file.h"

namespace trireme::nn {

/// One thread puts and takes. Every bit comes back.
class ActivationStore {
 public:
  /// Into host memory.
  ActivationStore() = default;
  /// Into a file in `folder` (made if need be), which has no name any more once it is open: whatever happens, nothing
  /// of it stays. It grows to what one backward pass needs. Throws for a folder that cannot be written.
  explicit ActivationStore(const std::filesystem::path& folder);

  struct Handle {
    at::Tensor host;      ///< contiguous; undefined in a file
    int64_t offset = -1;  ///< in the file
    std::vector<int64_t> shape;
    at::ScalarType dtype;
    at::Device device = at::kCPU;
  };

  /// Throws when the file cannot grow.
  Handle put(const at::Tensor& x);
  /// The tensor again, where it was. A handle is taken once.
  at::Tensor take(const Handle& handle);

  /// Bytes of the file so far; 0 without one.
  int64_t file_bytes() const { return end_; }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  int64_t end_ = 0;
  std::map<int64_t, std::vector<int64_t>> free_;  // places by their size
};

}  // namespace trireme::nn
