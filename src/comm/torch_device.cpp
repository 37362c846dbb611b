#include "comm/torch_device.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <bit>
#include <vector>

#include "base/error.h"

namespace trireme::comm {
namespace {

at::ScalarType type_of(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return at::kByte;
    case DType::i32:
      return at::kInt;
    case DType::i64:
      return at::kLong;
    case DType::f16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f32:
      return at::kFloat;
    case DType::f64:
      return at::kDouble;
  }
  TRIREME_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

at::Tensor wide(const at::Tensor& tensor) {
  const bool narrow = tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
  return narrow ? tensor.to(at::kFloat) : tensor;
}

// The sum of neighbours, of their sums, and so on; where their number is no power of two, the largest such part first.
at::Tensor tree_sum(std::span<const at::Tensor> terms) {
  if (terms.size() == 1) return terms[0];
  const size_t half = std::bit_floor(terms.size() - 1);
  return tree_sum(terms.first(half)) + tree_sum(terms.subspan(half));
}

// The first step makes a tensor of its own: an input is never written.
at::Tensor sum_in_order(std::span<const at::Tensor> terms, Reduction how) {
  const auto term = [&](size_t i) { return how.factor == 1 ? wide(terms[i]) : wide(terms[i]) * how.factor; };
  if (terms.size() == 1) return term(0);
  if (how.op == ReduceOp::max || how.op == ReduceOp::min) {
    at::Tensor total = term(0);
    for (size_t i = 1; i < terms.size(); ++i)
      total = how.op == ReduceOp::max ? at::maximum(total, term(i)) : at::minimum(total, term(i));
    return total;
  }
  at::Tensor total = term(0) + term(1);
  for (size_t i = 2; i < terms.size(); ++i) total.add_(term(i));
  return total;
}

class TorchStream final : public DeviceStream {
 public:
  explicit TorchStream(c10::Device device)
      : device_(device), stream_(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device, /*priority=*/-1)) {}

  void* handle() const override { return stream_.native_handle(); }

  // The allocator gives the memory again to this stream alone, so its order keeps users apart.
  std::shared_ptr<std::byte> allocate(int64_t bytes) override {
    const c10::StreamGuard guard(stream_);
    auto tensor = std::make_shared<at::Tensor>(at::empty({bytes}, at::TensorOptions(at::kByte).device(device_)));
    auto* data = static_cast<std::byte*>(tensor->data_ptr());
    return {std::move(tensor), data};
  }

  void reduce(void* output, std::span<const void* const> inputs, int64_t count, DType dtype, Reduction how) override {
    const c10::StreamGuard guard(stream_);
    reduce_by_torch(output, inputs, count, dtype, how, device_);
  }

 private:
  c10::Device device_;
  c10::Stream stream_;
};

}  // namespace

void reduce_by_torch(void* output, std::span<const void* const> inputs, int64_t count, DType dtype, Reduction how,
                     c10::Device where) {
  const at::NoGradGuard no_grad;
  const at::TensorOptions options = at::TensorOptions(type_of(dtype)).device(where);
  const auto view = [&](const void* data) {
    return at::from_blob(
        const_cast<void*>(data), {count}, [](void*) {}, options, where);
  };
  std::vector<at::Tensor> terms;
  for (const void* input : inputs) terms.push_back(view(input));
  at::Tensor total = how.tree ? tree_sum(terms) : sum_in_order(terms, how);
  // By a tensor: CUDA multiplies by the reciprocal of a number.
  if (how.op == ReduceOp::avg) total = total / at::full({1}, static_cast<double>(inputs.size()), total.options());
  view(output).copy_(total);
}

TorchDevice::TorchDevice(int64_t index) : device_(at::kCUDA, static_cast<c10::DeviceIndex>(index)) {
  if (!at::hasCUDA()) {
    throw_input(
        "comm.backend = nccl moves tensors between GPUs, and this build of torch, or this machine, has none. A build "
        "with "
        "a CUDA torch (CUDA_HOME=/path/to/cuda cmake --preset cuda) and tools/build-nccl.sh give it; on the CPU "
        "comm.backend = shm works on one machine, mpi on several");
  }
  const c10::impl::VirtualGuardImpl impl(at::kCUDA);
  if (index >= impl.deviceCount()) {
    throw_input("comm.backend = nccl needs a GPU for each worker of a machine: worker {} finds {}; --workers {} works",
                index, impl.deviceCount(), impl.deviceCount());
  }
  impl.setDevice(device_);
}

void* TorchDevice::compute_stream() const {
  return c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device_).native_handle();
}

std::unique_ptr<DeviceStream> TorchDevice::make_stream() { return std::make_unique<TorchStream>(device_); }

}  // namespace trireme::comm
