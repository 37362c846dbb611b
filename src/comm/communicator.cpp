#include "comm/communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/profile.h"
#include "comm/group.h"
#include "comm/shm_group.h"
#include "comm/tensor_call.h"

namespace trireme::comm {
namespace {

profile::Work work_of(const Call& call) {
  int64_t count = call.count;
  if (call.extents != nullptr) {
    count = std::accumulate(call.extents->counts.begin(), call.extents->counts.end(), int64_t{0});
  }
  return {.bytes = static_cast<double>(count) * static_cast<double>(size_of(call.dtype))};
}

// Tensors of an all_gather into one memory: a longer list is several calls.
constexpr size_t most_into_one_memory = 512;

void disturb(const Group& group) {
  if (group.settings() && group.settings()->disturb) group.settings()->disturb();
}

// A group of one rank in place touches nothing, so the tensor may be anywhere: training on one GPU goes this way.
void check_device(const Group& group, const Call& call) {
  if (!call.on_device || group.reaches_devices()) return;
  const Extents* extents = call.extents.get();
  const bool in_place = extents == nullptr ? call.input == nullptr || call.input == call.output
                                           : std::equal(extents->inputs.begin(), extents->inputs.end(),
                                                        extents->outputs.begin(), extents->outputs.end());
  if (group.size() == 1 && in_place) return;
  throw_input(
      "{}: comm.backend = shm and mpi move CPU tensors, and these are on another device; comm.backend = nccl moves "
      "those "
      "of GPUs",
      name_of(call.kind));
}

Work start(const std::shared_ptr<Group>& group, Call call) {
  check_device(*group, call);
  disturb(*group);
  const profile::Scope scope(profile::Phase::communication, "collective, post", [&] { return work_of(call); });
  return {group, {group->post(std::move(call))}};
}

// The core multiplies in memory that it can reach.
Work scale_alone(at::TensorList tensors, Reduction how) {
  for (at::Tensor tensor : tensors) tensor.mul_(how.factor);
  return {};
}

// A gather of the only rank: any device, and a cast where types differ.
void copy_alone(at::TensorList outputs, at::TensorList inputs) {
  const at::NoGradGuard no_grad;
  for (size_t t = 0; t < inputs.size(); ++t)
    if (outputs[t].data_ptr() != inputs[t].data_ptr()) outputs[t].copy_(inputs[t]);
}

// A sum of the only rank's input, on a device that the core does not reach.
void reduce_alone(at::TensorList outputs, at::TensorList inputs, Reduction how) {
  const at::NoGradGuard no_grad;
  for (size_t t = 0; t < inputs.size(); ++t) {
    const at::Tensor input = how.factor == 1 ? inputs[t] : inputs[t] * how.factor;
    if (how.accumulate)
      at::Tensor(outputs[t]).add_(input);
    else if (outputs[t].data_ptr() != input.data_ptr())
      at::Tensor(outputs[t]).copy_(input);
  }
}

// Each input, cast into its place in the output.
std::vector<at::Tensor> own_blocks(at::TensorList outputs, at::TensorList inputs, at::IntArrayRef rows, int64_t rank,
                                   int64_t size) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> blocks;
  for (size_t t = 0; t < inputs.size(); ++t) {
    const at::IntArrayRef counts = rows.slice(t * static_cast<size_t>(size), static_cast<size_t>(size));
    const int64_t first = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
    blocks.push_back(outputs[t].narrow(0, first, counts[static_cast<size_t>(rank)]));
    blocks.back().copy_(inputs[t]);
  }
  return blocks;
}

Call message_call(const Message& message) {
  Call call = in_place_call(message.sends ? Kind::send : Kind::recv, message.tensor);
  call.root = message.peer;
  if (message.sends) call.input = std::exchange(call.output, nullptr);
  return call;
}

template <typename T>
T reduce_scalar(Group& group, T value, DType dtype, ReduceOp op) {
  disturb(group);
  Call call;
  call.kind = Kind::all_reduce;
  call.dtype = dtype;
  call.reduction = op;
  call.count = 1;
  call.output = &value;
  const profile::Scope scope(profile::Phase::communication, "collective of one number", [&] { return work_of(call); });
  group.run(std::move(call));
  return value;
}

std::vector<std::byte> gather_bytes(Group& group, const void* data, int64_t bytes) {
  disturb(group);
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

// ---- Work

Work::Work(std::shared_ptr<Group> group, std::vector<std::shared_ptr<Operation>> operations)
    : group_(std::move(group)), operations_(std::move(operations)) {}

void Work::add(Work other) {
  if (group_ == nullptr) group_ = other.group_;
  operations_.insert(operations_.end(), other.operations_.begin(), other.operations_.end());
}

void Work::wait() {
  if (!operations_.empty()) wait(group_->timeout());
}

void Work::wait(std::chrono::milliseconds timeout) {
  if (operations_.empty()) return;
  const profile::Scope scope(profile::Phase::communication, "collective, wait", [] { return profile::Work{}; });
  disturb(*group_);
  for (const auto& operation : operations_) group_->wait(*operation, timeout);
  disturb(*group_);
  operations_.clear();
}

bool Work::done() {
  return std::all_of(operations_.begin(), operations_.end(),
                     [&](const auto& operation) { return group_->test(*operation); });
}

// ---- Communicator

std::shared_ptr<Communicator> Communicator::solo(std::string axis) {
  return std::make_shared<Communicator>(std::make_shared<ShmGroup>(std::move(axis)));
}

std::shared_ptr<Communicator> Communicator::subgroup(const std::vector<int64_t>& ranks, const std::string& axis) {
  const auto me = std::find(ranks.begin(), ranks.end(), rank());
  if (me == ranks.end()) throw_input("a group of axis {}: rank {} is not one of its members", axis, rank());
  GroupOptions options;
  for (const int64_t member : ranks) {
    if (member < 0 || member >= size() || std::count(ranks.begin(), ranks.end(), member) != 1) {
      throw_input("a group of axis {}: its members are different ranks below {}; found {}", axis, size(),
                  c10::str(at::IntArrayRef(ranks)));
    }
    options.members.push_back(group_->members()[static_cast<size_t>(member)]);
  }
  if (ranks.size() == 1) {
    return std::make_shared<Communicator>(std::make_shared<ShmGroup>(axis, group_->settings()));
  }
  options.axis = axis;
  options.rank = me - ranks.begin();
  options.timeout = timeout();
  options.settings = group_->settings();
  options.generation = group_->generation();
  return std::make_shared<Communicator>(group_->subgroup(std::move(options)));
}

std::shared_ptr<Communicator> Communicator::split(int64_t color, int64_t key, const std::string& axis) {
  const std::array<int64_t, 2> mine = {color, key};
  const auto bytes = gather_bytes(*group_, mine.data(), sizeof mine);
  std::vector<std::array<int64_t, 2>> all(static_cast<size_t>(size()));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  if (color < 0) return nullptr;
  std::vector<int64_t> members;
  for (int64_t r = 0; r < size(); ++r) {
    if (all[static_cast<size_t>(r)][0] == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](int64_t a, int64_t b) {
    return all[static_cast<size_t>(a)][1] < all[static_cast<size_t>(b)][1];
  });
  return subgroup(members, axis);
}
Communicator::Communicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}
Communicator::~Communicator() = default;

int64_t Communicator::rank() const { return group_->rank(); }
int64_t Communicator::size() const { return group_->size(); }
const std::string& Communicator::axis() const { return group_->axis(); }
std::chrono::milliseconds Communicator::timeout() const { return group_->timeout(); }
bool Communicator::shares_memory() const { return group_->shares_memory(); }

Work Communicator::all_reduce_async(const at::Tensor& tensor, Reduction how) {
  if (size() == 1 && !tensor.is_cpu() && how.factor != 1) return scale_alone(tensor, how);
  Call call = in_place_call(Kind::all_reduce, tensor);
  call.reduction = how;
  return start(group_, std::move(call));
}
Work Communicator::all_reduce_async(at::TensorList tensors, Reduction how) {
  if (tensors.empty()) return {};
  if (size() == 1 && !tensors[0].is_cpu() && how.factor != 1) return scale_alone(tensors, how);
  Call call = in_place_call(Kind::all_reduce, tensors);
  call.reduction = how;
  return start(group_, std::move(call));
}
Work Communicator::all_reduce_into_async(const at::Tensor& output, const at::Tensor& input, Reduction how) {
  Call call = pair_call(Kind::all_reduce, output, input);
  call.reduction = how;
  return start(group_, std::move(call));
}
Work Communicator::reduce_async(const at::Tensor& tensor, int64_t root, Reduction how) {
  Call call = in_place_call(Kind::reduce, tensor);
  call.root = root;
  call.reduction = how;
  return start(group_, std::move(call));
}
Work Communicator::broadcast_async(const at::Tensor& tensor, int64_t root) {
  Call call = in_place_call(Kind::broadcast, tensor);
  call.root = root;
  return start(group_, std::move(call));
}
Work Communicator::broadcast_async(at::TensorList tensors, int64_t root) {
  if (tensors.empty()) return {};
  Call call = in_place_call(Kind::broadcast, tensors);
  call.root = root;
  return start(group_, std::move(call));
}
Work Communicator::all_gather_into_async(const at::Tensor& output, const at::Tensor& input) {
  return start(group_, blocks_call(Kind::all_gather, output, input, size()));
}
Work Communicator::all_gather_into_async(at::TensorList outputs, at::TensorList inputs) {
  if (outputs.empty() && inputs.empty()) return {};
  return start(group_, blocks_call(Kind::all_gather, outputs, inputs, size()));
}
Work Communicator::all_gather_v_async(at::TensorList outputs, at::TensorList inputs, at::IntArrayRef rows) {
  if (outputs.empty() && inputs.empty()) return {};
  Call call = rows_call(Kind::all_gather, outputs, inputs, rows, rank(), size());
  if (size() == 1) {
    copy_alone(outputs, inputs);
    return {};
  }
  call.once = std::all_of(outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
    return output.numel() == 0 || group_->is_once(output.data_ptr());
  });
  if (call.once && outputs.size() > most_into_one_memory) {
    Work all;
    for (size_t first = 0; first < outputs.size(); first += most_into_one_memory) {
      const size_t n = std::min(most_into_one_memory, outputs.size() - first), ranks = static_cast<size_t>(size());
      all.add(
          all_gather_v_async(outputs.slice(first, n), inputs.slice(first, n), rows.slice(first * ranks, n * ranks)));
    }
    return all;
  }
  if (call.once || call.input_dtype == call.dtype) return start(group_, std::move(call));
  // Elsewhere a cast is this rank's own: into its block of the output, from which it is gathered.
  return start(group_, rows_call(Kind::all_gather, outputs, own_blocks(outputs, inputs, rows, rank(), size()), rows,
                                 rank(), size()));
}
Work Communicator::gather_async(const at::Tensor& output, const at::Tensor& input, int64_t root) {
  Call call = blocks_call(Kind::gather, output, input, size(), root == rank());
  call.root = root;
  return start(group_, std::move(call));
}
Work Communicator::reduce_scatter_into_async(const at::Tensor& output, const at::Tensor& input, Reduction how) {
  Call call = blocks_call(Kind::reduce_scatter, output, input, size());
  call.reduction = how;
  return start(group_, std::move(call));
}
Work Communicator::reduce_scatter_into_async(at::TensorList outputs, at::TensorList inputs, Reduction how) {
  if (outputs.empty() && inputs.empty()) return {};
  Call call = blocks_call(Kind::reduce_scatter, outputs, inputs, size());
  call.reduction = how;
  return start(group_, std::move(call));
}
Work Communicator::reduce_scatter_v_async(at::TensorList outputs, at::TensorList inputs, at::IntArrayRef rows,
                                          Reduction how) {
  if (outputs.empty() && inputs.empty()) return {};
  Call call = rows_call(Kind::reduce_scatter, outputs, inputs, rows, rank(), size());
  call.reduction = how;
  if (size() == 1 && !outputs[0].is_cpu()) {
    reduce_alone(outputs, inputs, how);
    return {};
  }
  return start(group_, std::move(call));
}
Work Communicator::scatter_async(const at::Tensor& output, const at::Tensor& input, int64_t root) {
  Call call = blocks_call(Kind::scatter, output, input, size(), root == rank());
  call.root = root;
  return start(group_, std::move(call));
}
Work Communicator::all_to_all_into_async(const at::Tensor& output, const at::Tensor& input) {
  return start(group_, blocks_call(Kind::all_to_all, output, input, size()));
}
Work Communicator::all_to_all_v_async(const at::Tensor& output, const at::Tensor& input, at::IntArrayRef output_rows,
                                      at::IntArrayRef input_rows) {
  return start(group_, exchange_call(output, input, output_rows, input_rows, size()));
}
Work Communicator::send_async(const at::Tensor& tensor, int64_t to) {
  return start(group_, message_call(Message::send(tensor, to)));
}
Work Communicator::recv_async(const at::Tensor& tensor, int64_t from) {
  return start(group_, message_call(Message::recv(tensor, from)));
}
Work Communicator::send_recv_async(at::ArrayRef<Message> messages) {
  std::vector<Call> calls;  // all are checked before the first is posted
  for (const Message& message : messages) calls.push_back(message_call(message));
  for (const Call& call : calls) check_device(*group_, call);
  std::vector<std::shared_ptr<Operation>> operations;
  for (Call& call : calls) operations.push_back(group_->post(std::move(call)));
  return {group_, std::move(operations)};
}
Work Communicator::barrier_async() {
  Call call;
  call.kind = Kind::barrier;
  return start(group_, std::move(call));
}

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
  const Group::Memory memory = group_->allocate(what, stride, sharing == Sharing::once);
  return at::from_blob(
      memory.data, sizes, [owner = memory.owner](void*) {}, options);
}

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
