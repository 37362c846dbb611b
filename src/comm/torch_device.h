// Private to comm: a GPU as a NcclGroup sees it, through torch: streams of torch's pool, memory of its allocator, and
// sums by its operations. Nothing of CUDA is included, so any build of torch compiles it; only a CUDA build can make
// one.
#pragma once

#include <c10/core/Device.h>

#include "comm/nccl/device.h"

namespace trireme::comm {

/// outputs = what reduce() (comm/reduce.h) gives for the inputs, with torch's operations on `where`; both are memory of
/// that device.
void reduce_by_torch(void* output, std::span<const void* const> inputs, int64_t count, DType dtype, Reduction how,
                     c10::Device where);

class TorchDevice final : public Device {
 public:
  /// Throws InputError where torch has no CUDA, or this machine no such GPU.
  explicit TorchDevice(int64_t index);
  c10::Device device() const { return device_; }
  void* compute_stream() const override;
  std::unique_ptr<DeviceStream> make_stream() override;

 private:
  c10::Device device_;
};

}  // namespace trireme::comm
