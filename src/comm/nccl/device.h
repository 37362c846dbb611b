// The device that a NcclGroup's tensors lie on, as far as it does more than NCCL: its streams, memory from the
// allocator that the tensors come from, and sums. TorchDevice (comm/torch_device.h) has them from torch; HostDevice
// stands in where a test's library has the host's memory for a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "comm/nccl/table.h"
#include "comm/reduce_op.h"

namespace trireme::comm {

/// A stream beside those that compute.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual void* handle() const = 0;
  /// Memory for what is put on this stream; its owner keeps it until that is done.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes) = 0;
  /// Puts on the stream what reduce() (comm/reduce.h) does with one output, to the same bits.
  virtual void reduce(void* output, std::span<const void* const> inputs, int64_t count, DType dtype, Reduction how) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  /// Of the calling thread: what it has been given comes before a call that is posted now.
  virtual void* compute_stream() const = 0;
  virtual std::unique_ptr<DeviceStream> make_stream() = 0;
  /// Whether memory of the host can be given to the library; what cannot goes by way of the device's.
  virtual bool takes_host_memory() const { return false; }
};

/// Over a library with NcclTable::host_memory.
class HostDevice final : public Device {
 public:
  explicit HostDevice(const NcclTable& table) : table_(table) {}
  void* compute_stream() const override { return nullptr; }
  std::unique_ptr<DeviceStream> make_stream() override;
  bool takes_host_memory() const override { return table_.host_memory == 1; }

 private:
  const NcclTable& table_;
};

}  // namespace trireme::comm
