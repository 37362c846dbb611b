#include "comm/backend.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

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

ReduceOp translate(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    default:
      throw_input(
          "the shm backend reduces with SUM, MAX and MIN; for AVG sum and divide once, where the average is meant");
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

void check_even(const std::vector<int64_t>& splits, const char* what) {
  for (const int64_t split : splits) {
    if (split != splits.front()) throw_input("alltoall_base: uneven {} splits are not built", what);
  }
}

}  // namespace

ShmBackend::ShmBackend(std::shared_ptr<Communicator> communicator)
    : c10d::Backend(static_cast<int>(communicator->rank()), static_cast<int>(communicator->size())),
      communicator_(std::move(communicator)) {}

ShmBackend::WorkPtr ShmBackend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  at::Tensor& tensor = only(tensors, "broadcast");
  return c10::make_intrusive<BackendWork>(rank_, c10d::OpType::BROADCAST,
                                          communicator_->broadcast_async(tensor, options.rootRank), tensors);
}

ShmBackend::WorkPtr ShmBackend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor& tensor = only(tensors, "allreduce");
  return c10::make_intrusive<BackendWork>(
      rank_, c10d::OpType::ALLREDUCE, communicator_->all_reduce_async(tensor, translate(options.reduceOp)), tensors);
}

ShmBackend::WorkPtr ShmBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                          std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& /*options*/) {
  at::Tensor& input = only(inputs, "allgather");
  std::vector<at::Tensor>& list = only_list(outputs, "allgather", size_);
  at::Tensor flat = at::empty({size_, input.numel()}, input.options());
  auto finish = [flat, list] {
    for (size_t r = 0; r < list.size(); ++r) list[r].copy_(flat[static_cast<int64_t>(r)].view_as(list[r]));
  };
  return c10::make_intrusive<BackendWork>(rank_, c10d::OpType::ALLGATHER,
                                          communicator_->all_gather_into_async(flat, input.contiguous()), list, finish);
}

ShmBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& /*options*/) {
  return c10::make_intrusive<BackendWork>(rank_, c10d::OpType::_ALLGATHER_BASE,
                                          communicator_->all_gather_into_async(output, input),
                                          std::vector<at::Tensor>{output});
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                               std::vector<std::vector<at::Tensor>>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  at::Tensor& output = only(outputs, "reduce_scatter");
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : only_list(inputs, "reduce_scatter", size_)) parts.push_back(part.reshape({-1}));
  return c10::make_intrusive<BackendWork>(
      rank_, c10d::OpType::REDUCE_SCATTER,
      communicator_->reduce_scatter_into_async(output, at::cat(parts), translate(options.reduceOp)), outputs);
}

ShmBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  return c10::make_intrusive<BackendWork>(
      rank_, c10d::OpType::_REDUCE_SCATTER_BASE,
      communicator_->reduce_scatter_into_async(output, input, translate(options.reduceOp)),
      std::vector<at::Tensor>{output});
}

ShmBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                              const c10d::AllToAllOptions& /*options*/) {
  check_even(output_splits, "output");
  check_even(input_splits, "input");
  return c10::make_intrusive<BackendWork>(rank_, c10d::OpType::ALLTOALL_BASE,
                                          communicator_->all_to_all_into_async(output, input),
                                          std::vector<at::Tensor>{output});
}

// Messages of a pair arrive in the order in which they were sent, so a tag would only be checked, never matched.
ShmBackend::WorkPtr ShmBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  if (tag != 0) throw_input("send: the shm backend has no tags (found {}); messages of a pair arrive in order", tag);
  return c10::make_intrusive<BackendWork>(rank_, c10d::OpType::SEND,
                                          communicator_->send_async(only(tensors, "send"), to), tensors);
}

ShmBackend::WorkPtr ShmBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  if (tag != 0) throw_input("recv: the shm backend has no tags (found {}); messages of a pair arrive in order", tag);
  return c10::make_intrusive<BackendWork>(rank_, c10d::OpType::RECV,
                                          communicator_->recv_async(only(tensors, "recv"), from), tensors);
}

ShmBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions& /*options*/) {
  return c10::make_intrusive<BackendWork>(rank_, c10d::OpType::BARRIER, communicator_->barrier_async(),
                                          std::vector<at::Tensor>{});
}

void ShmBackend::abort() { communicator_->abort("the process group was aborted"); }

}  // namespace trireme::comm
