#include "comm/backend.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"

namespace trireme::comm {
namespace {

// `finish` moves the result to where the caller wants it, once it is there.
class BackendWork : public c10d::Work {
 public:
  BackendWork(int rank, c10d::OpType type, trireme::comm::Work work, std::vector<at::Tensor> results,
              std::function<void()> finish = {})
      : c10d::Work(rank, type), work_(std::move(work)), results_(std::move(results)), finish_(std::move(finish)) {}

  bool isCompleted() override {
    try {
      if (work_.done()) settle();
    } catch (...) {
      failure_ = std::current_exception();
      return true;
    }
    return settled_;
  }
  bool isSuccess() const override { return settled_ && failure_ == nullptr; }
  std::exception_ptr exception() const override { return failure_; }
  void synchronize() override { wait(kNoTimeout); }
  // c10d's kNoTimeout (0) and kUnsetTimeout (-1 ms) mean that none was given: then the group's deadline holds.
  bool wait(std::chrono::milliseconds timeout) override {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    if (!settled_) {
      try {
        timeout.count() <= 0 ? work_.wait() : work_.wait(timeout);
        settle();
      } catch (...) {
        failure_ = std::current_exception();
        throw;
      }
    }
    return true;
  }
  std::vector<at::Tensor> result() override { return results_; }

 private:
  void settle() {
    if (std::exchange(settled_, true)) return;
    if (finish_) finish_();
    finish_ = {};
  }

  trireme::comm::Work work_;
  std::vector<at::Tensor> results_;
  std::function<void()> finish_;
  bool settled_ = false;
  std::exception_ptr failure_;
};

// Waits for each of several.
class CoalescedWork : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<ShmBackend::WorkPtr> parts)
      : c10d::Work(rank, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

  bool isCompleted() override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isSuccess(); });
  }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& part : parts_) part->wait(timeout);
    return true;
  }

 private:
  std::vector<ShmBackend::WorkPtr> parts_;
};

Reduction translate(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::avg;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* supplement = static_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      const at::Tensor& factor = supplement->tensor_factor;
      return {ReduceOp::sum, factor.defined() ? factor.item<double>() : supplement->double_factor};
    }
    default:
      throw_input("the shm backend reduces with SUM, AVG, MAX, MIN and PREMUL_SUM");
  }
}

at::Tensor& only(std::vector<at::Tensor>& tensors, const char* what) {
  if (tensors.size() != 1)
    throw_input("{}: expected one tensor (one device a process), found {}", what, tensors.size());
  return tensors.front();
}

std::vector<at::Tensor>& only_list(std::vector<std::vector<at::Tensor>>& lists, const char* what, int size) {
  if (lists.size() != 1) throw_input("{}: expected one list (one device a process), found {}", what, lists.size());
  if (lists.front().size() != static_cast<size_t>(size)) {
    throw_input("{}: expected a tensor for each of {} ranks, found {}", what, size, lists.front().size());
  }
  return lists.front();
}

at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

std::vector<int64_t> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

at::Tensor flat_like(const std::vector<at::Tensor>& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return at::empty({elements}, tensors.front().options());
}

// Moves what came in one piece to the tensors of a list.
std::function<void()> spread(const at::Tensor& flat, const std::vector<at::Tensor>& list) {
  return [flat, list] {
    int64_t at = 0;
    for (const at::Tensor& tensor : list) {
      at::Tensor to = tensor;
      to.copy_(flat.narrow(0, at, tensor.numel()).view_as(tensor));
      at += tensor.numel();
    }
  };
}

}  // namespace

ShmBackend::ShmBackend(std::shared_ptr<Communicator> communicator)
    : c10d::Backend(static_cast<int>(communicator->rank()), static_cast<int>(communicator->size())),
      communicator_(std::move(communicator)) {}

ShmBackend::WorkPtr ShmBackend::wrap(c10d::OpType type, trireme::comm::Work work, Tensors results,
                                     std::function<void()> finish) {
  WorkPtr wrapped =
      c10::make_intrusive<BackendWork>(rank_, type, std::move(work), std::move(results), std::move(finish));
  if (coalescing_) coalesced_.push_back(wrapped);
  return wrapped;
}

ShmBackend::WorkPtr ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return wrap(c10d::OpType::BROADCAST, communicator_->broadcast_async(only(tensors, "broadcast"), options.rootRank),
              tensors);
}

ShmBackend::WorkPtr ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return wrap(c10d::OpType::ALLREDUCE,
              communicator_->all_reduce_async(only(tensors, "allreduce"), translate(options.reduceOp)), tensors);
}

ShmBackend::WorkPtr ShmBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return wrap(c10d::OpType::ALLREDUCE_COALESCED,
              communicator_->all_reduce_async(at::TensorList(tensors), translate(options.reduceOp)), tensors);
}

ShmBackend::WorkPtr ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return wrap(c10d::OpType::REDUCE,
              communicator_->reduce_async(only(tensors, "reduce"), options.rootRank, translate(options.reduceOp)),
              tensors);
}

ShmBackend::WorkPtr ShmBackend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  const Tensors& list = only_list(outputs, "allgather", size_);
  const at::Tensor flat = flat_like(list);
  return wrap(c10d::OpType::ALLGATHER,
              communicator_->all_gather_v_async(flat, only(inputs, "allgather").reshape({-1}), sizes_of(list)), list,
              spread(flat, list));
}

ShmBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  return wrap(c10d::OpType::_ALLGATHER_BASE, communicator_->all_gather_into_async(output, input), {output});
}

ShmBackend::WorkPtr ShmBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::AllgatherOptions&) {
  return wrap(c10d::OpType::COALESCED,
              communicator_->all_gather_into_async(at::TensorList(outputs), at::TensorList(inputs)), outputs);
}

ShmBackend::WorkPtr ShmBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor input = only(inputs, "gather").contiguous();
  if (options.rootRank != rank_) {
    return wrap(c10d::OpType::GATHER, communicator_->gather_async({}, input, options.rootRank), {});
  }
  const Tensors& list = only_list(outputs, "gather", size_);
  const at::Tensor flat = flat_like(list);
  return wrap(c10d::OpType::GATHER, communicator_->gather_async(flat, input, options.rootRank), list,
              spread(flat, list));
}

ShmBackend::WorkPtr ShmBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter");
  const at::Tensor input = options.rootRank == rank_ ? flatten(only_list(inputs, "scatter", size_)) : at::Tensor();
  return wrap(c10d::OpType::SCATTER, communicator_->scatter_async(output, input, options.rootRank), outputs);
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only(outputs, "reduce_scatter");
  const Tensors& list = only_list(inputs, "reduce_scatter", size_);
  return wrap(c10d::OpType::REDUCE_SCATTER,
              communicator_->reduce_scatter_v_async(output.view({-1}), flatten(list), sizes_of(list),
                                                    translate(options.reduceOp)),
              outputs);
}

ShmBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  return wrap(c10d::OpType::_REDUCE_SCATTER_BASE,
              communicator_->reduce_scatter_into_async(output, input, translate(options.reduceOp)), {output});
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::ReduceScatterOptions& options) {
  return wrap(c10d::OpType::COALESCED,
              communicator_->reduce_scatter_into_async(at::TensorList(outputs), at::TensorList(inputs),
                                                       translate(options.reduceOp)),
              outputs);
}

ShmBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                              const c10d::AllToAllOptions&) {
  if (output_splits.empty() != input_splits.empty()) throw_input("alltoall_base: splits of one side alone");
  return wrap(c10d::OpType::ALLTOALL_BASE,
              output_splits.empty() ? communicator_->all_to_all_into_async(output, input)
                                    : communicator_->all_to_all_v_async(output, input, output_splits, input_splits),
              {output});
}

ShmBackend::WorkPtr ShmBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  if (outputs.size() != static_cast<size_t>(size_) || inputs.size() != static_cast<size_t>(size_)) {
    throw_input("alltoall: expected a tensor for each of {} ranks, found {} outputs and {} inputs", size_,
                outputs.size(), inputs.size());
  }
  const at::Tensor flat = flat_like(outputs);
  return wrap(c10d::OpType::ALLTOALL,
              communicator_->all_to_all_v_async(flat, flatten(inputs), sizes_of(outputs), sizes_of(inputs)), outputs,
              spread(flat, outputs));
}

// Messages of a pair arrive in the order in which they were sent, so a tag would only be checked, never matched.
ShmBackend::WorkPtr ShmBackend::send(Tensors& tensors, int to, int tag) {
  if (tag != 0) throw_input("send: the shm backend has no tags (found {}); messages of a pair arrive in order", tag);
  return wrap(c10d::OpType::SEND, communicator_->send_async(only(tensors, "send"), to), tensors);
}

ShmBackend::WorkPtr ShmBackend::recv(Tensors& tensors, int from, int tag) {
  if (tag != 0) throw_input("recv: the shm backend has no tags (found {}); messages of a pair arrive in order", tag);
  return wrap(c10d::OpType::RECV, communicator_->recv_async(only(tensors, "recv"), from), tensors);
}

ShmBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions&) {
  return wrap(c10d::OpType::BARRIER, communicator_->barrier_async(), {});
}

void ShmBackend::startCoalescing() { coalescing_ = true; }

ShmBackend::WorkPtr ShmBackend::endCoalescing() {
  coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
}

c10::intrusive_ptr<c10d::Backend> ShmBackend::split(const c10::intrusive_ptr<c10d::Store>&,
                                                    const std::vector<int>& ranks, const c10::intrusive_ptr<Options>&) {
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
  return c10::make_intrusive<ShmBackend>(communicator_->subgroup({ranks.begin(), ranks.end()}, "split"));
}

void ShmBackend::abort() { communicator_->abort("the process group was aborted"); }

}  // namespace trireme::comm
