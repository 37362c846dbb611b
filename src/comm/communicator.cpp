#include "comm/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/profile.h"
#include "comm/group.h"

namespace trireme::comm {
namespace {

std::optional<DType> arithmetic_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kBFloat16:
      return DType::bf16;
    case at::kHalf:
      return DType::f16;
    case at::kInt:
      return DType::i32;
    case at::kLong:
      return DType::i64;
    case at::kByte:
      return DType::u8;
    default:
      return std::nullopt;
  }
}

void check_tensor(const at::Tensor& tensor, Kind kind, bool any_device = false) {
  const auto refuse = [&](const std::string& why) { throw_input("{}: {}", name_of(kind), why); };
  if (!tensor.defined()) refuse("the tensor is undefined");
  if (!any_device && !tensor.device().is_cpu()) {
    refuse(fmt::format("comm.backend = shm moves CPU tensors; this one is on {}", tensor.device().str()));
  }
  if (!tensor.is_contiguous()) refuse("the tensor is not contiguous; pass tensor.contiguous()");
}

// dtype and element count of a call; a dtype that the core does not know travels as bytes.
void set_elements(Call& call, const at::Tensor& tensor) {
  const auto known = arithmetic_dtype(tensor.scalar_type());
  const bool reduces = call.kind == Kind::all_reduce || call.kind == Kind::reduce_scatter;
  if (!known && reduces) {
    throw_input("{}: cannot reduce {}; float, double, bfloat16, half, int64, int32 and uint8 can be",
                name_of(call.kind), c10::toString(tensor.scalar_type()));
  }
  call.dtype = known.value_or(DType::u8);
  call.count = tensor.numel() * (known ? 1 : static_cast<int64_t>(tensor.element_size()));
}

// In place, a group of one rank touches nothing, so the tensor may be on any device: training on one GPU goes this way.
Call in_place(Kind kind, const at::Tensor& tensor, int64_t size) {
  check_tensor(tensor, kind, /*any_device=*/size == 1);
  Call call;
  call.kind = kind;
  set_elements(call, tensor);
  call.output = tensor.data_ptr();
  call.keep_alive = std::make_shared<at::Tensor>(tensor);
  return call;
}

// `outer` has `size` blocks as large as `inner`; or, for all_to_all, both are equal and made of blocks.
Call out_of_place(Kind kind, const at::Tensor& output, const at::Tensor& input, int64_t size) {
  check_tensor(output, kind);
  check_tensor(input, kind);
  if (output.scalar_type() != input.scalar_type()) {
    throw_input("{}: the output is {}, the input {}", name_of(kind), c10::toString(output.scalar_type()),
                c10::toString(input.scalar_type()));
  }
  const int64_t in = input.numel();
  const int64_t out = output.numel();
  Call call;
  call.kind = kind;
  if (kind == Kind::all_gather) {
    if (out != in * size)
      throw_input("all_gather: {} elements on each of {} ranks make {}; the output has {}", in, size, in * size, out);
    set_elements(call, input);
  } else if (kind == Kind::reduce_scatter) {
    if (in != out * size)
      throw_input("reduce_scatter: {} elements for each of {} ranks make {}; the input has {}", out, size, out * size,
                  in);
    set_elements(call, output);
  } else {
    if (in != out || in % size != 0) {
      throw_input(
          "all_to_all: input and output must have the same number of elements, a multiple of {} ranks; they have {} "
          "and {}",
          size, in, out);
    }
    set_elements(call, input);
    call.count /= size;
  }
  call.input = input.data_ptr();
  call.output = output.data_ptr();
  call.keep_alive = std::make_shared<std::array<at::Tensor, 2>>(std::array<at::Tensor, 2>{output, input});
  return call;
}

// An axis of one rank has nothing to tell.
profile::Work work_of(const Call& call) {
  return {.bytes = static_cast<double>(call.count) * static_cast<double>(size_of(call.dtype))};
}

Work start(const std::shared_ptr<Group>& group, Call call) {
  const profile::Scope scope(profile::Phase::communication, "collective, post", [&] { return work_of(call); });
  return {group, group->post(std::move(call))};
}

}  // namespace

// ---- Work

Work::Work(std::shared_ptr<Group> group, std::shared_ptr<Operation> operation)
    : group_(std::move(group)), operation_(std::move(operation)) {}

void Work::wait() {
  if (operation_ != nullptr) wait(group_->timeout());
}

void Work::wait(std::chrono::milliseconds timeout) {
  if (operation_ == nullptr) return;
  const profile::Scope scope(profile::Phase::communication, "collective, wait", [] { return profile::Work{}; });
  group_->wait(*operation_, timeout);
  operation_.reset();
}

bool Work::done() { return operation_ == nullptr || group_->test(*operation_); }

// ---- Communicator

std::shared_ptr<Communicator> Communicator::solo(std::string axis) {
  return std::make_shared<Communicator>(std::make_shared<Group>(std::move(axis)));
}
Communicator::Communicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}
Communicator::~Communicator() = default;

int64_t Communicator::rank() const { return group_->rank(); }
int64_t Communicator::size() const { return group_->size(); }
const std::string& Communicator::axis() const { return group_->axis(); }
std::chrono::milliseconds Communicator::timeout() const { return group_->timeout(); }

Work Communicator::all_reduce_async(const at::Tensor& tensor, ReduceOp op) {
  Call call = in_place(Kind::all_reduce, tensor, size());
  call.op = op;
  return start(group_, std::move(call));
}
Work Communicator::all_gather_into_async(const at::Tensor& output, const at::Tensor& input) {
  return start(group_, out_of_place(Kind::all_gather, output, input, size()));
}
Work Communicator::reduce_scatter_into_async(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  Call call = out_of_place(Kind::reduce_scatter, output, input, size());
  call.op = op;
  return start(group_, std::move(call));
}
Work Communicator::broadcast_async(const at::Tensor& tensor, int64_t root) {
  Call call = in_place(Kind::broadcast, tensor, size());
  call.root = root;
  return start(group_, std::move(call));
}
Work Communicator::all_to_all_into_async(const at::Tensor& output, const at::Tensor& input) {
  return start(group_, out_of_place(Kind::all_to_all, output, input, size()));
}
Work Communicator::send_async(const at::Tensor& tensor, int64_t to) {
  Call call = in_place(Kind::send, tensor, size());
  call.root = to;
  call.input = std::exchange(call.output, nullptr);
  return start(group_, std::move(call));
}
Work Communicator::recv_async(const at::Tensor& tensor, int64_t from) {
  Call call = in_place(Kind::recv, tensor, size());
  call.root = from;
  return start(group_, std::move(call));
}
Work Communicator::barrier_async() {
  Call call;
  call.kind = Kind::barrier;
  return start(group_, std::move(call));
}

void Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op) { all_reduce_async(tensor, op).wait(); }
void Communicator::all_gather_into(const at::Tensor& output, const at::Tensor& input) {
  all_gather_into_async(output, input).wait();
}
void Communicator::reduce_scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  reduce_scatter_into_async(output, input, op).wait();
}
void Communicator::broadcast(const at::Tensor& tensor, int64_t root) { broadcast_async(tensor, root).wait(); }
void Communicator::all_to_all_into(const at::Tensor& output, const at::Tensor& input) {
  all_to_all_into_async(output, input).wait();
}
void Communicator::send(const at::Tensor& tensor, int64_t to) { send_async(tensor, to).wait(); }
void Communicator::recv(const at::Tensor& tensor, int64_t from) { recv_async(tensor, from).wait(); }
void Communicator::barrier() { barrier_async().wait(); }
void Communicator::progress() {
  const profile::Scope scope(profile::Phase::communication, "collective, progress", [] { return profile::Work{}; });
  group_->progress();
}

at::Tensor Communicator::shared_empty(const std::string& name, at::IntArrayRef sizes, at::ScalarType dtype,
                                      Sharing sharing) {
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  if (size() == 1) return at::zeros(sizes, options);
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t extent : sizes) bytes *= extent;
  // Each rank's part starts on a page of its own: small pages, or huge ones for what is large.
  const int64_t alignment = bytes >= (2 << 20) ? 2 << 20 : 4096;
  const int64_t stride = (bytes + alignment - 1) / alignment * alignment;
  const std::string what = fmt::format("{}: {} {} for {}", name, c10::toString(dtype), c10::str(sizes),
                                       sharing == Sharing::each ? "each rank" : "all ranks");
  std::byte* memory = group_->shared_alloc(what, sharing == Sharing::each ? stride * size() : stride);
  if (sharing == Sharing::each) memory += stride * rank();
  return at::from_blob(
      memory, sizes, [arena = group_->arena()](void*) {}, options);
}

namespace {

template <typename T>
T reduce_scalar(Group& group, T value, DType dtype, ReduceOp op) {
  Call call;
  call.kind = Kind::all_reduce;
  call.dtype = dtype;
  call.op = op;
  call.count = 1;
  call.output = &value;
  const profile::Scope scope(profile::Phase::communication, "collective of one number", [&] { return work_of(call); });
  group.run(std::move(call));
  return value;
}

std::vector<std::byte> gather_bytes(Group& group, const void* data, int64_t bytes) {
  std::vector<std::byte> all(static_cast<size_t>(bytes * group.size()));
  Call call;
  call.kind = Kind::all_gather;
  call.count = bytes;
  call.input = data;
  call.output = all.data();
  group.run(std::move(call));
  return all;
}

}  // namespace

int64_t Communicator::all_reduce_scalar(int64_t value, ReduceOp op) {
  return reduce_scalar(*group_, value, DType::i64, op);
}
double Communicator::all_reduce_scalar(double value, ReduceOp op) {
  return reduce_scalar(*group_, value, DType::f64, op);
}
bool Communicator::any(bool flag) { return all_reduce_scalar(int64_t{flag}, ReduceOp::max) != 0; }

std::vector<std::string> Communicator::all_gather_strings(const std::string& text) {
  const auto length = static_cast<int64_t>(text.size());
  const auto packed_lengths = gather_bytes(*group_, &length, sizeof length);
  std::vector<int64_t> lengths(static_cast<size_t>(size()));
  std::memcpy(lengths.data(), packed_lengths.data(), packed_lengths.size());
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded = text;
  padded.resize(static_cast<size_t>(longest));
  const auto all = gather_bytes(*group_, padded.data(), longest);
  std::vector<std::string> texts;
  for (int64_t r = 0; r < size(); ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data()) + r * longest,
                       static_cast<size_t>(lengths[static_cast<size_t>(r)]));
  }
  return texts;
}

void Communicator::abort(const std::string& message, bool with_record) noexcept { group_->abort(message, with_record); }

}  // namespace trireme::comm
