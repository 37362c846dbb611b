// A communicator: the ranks of one mesh axis, and the collectives among them on tensors.
//
// Contract
//  - Every rank of the axis makes the same calls in the same order, with the same dtype and element count. A call that
//    differs from its peers' is an error on every rank that shows both sides' calls; it is not a hang.
//  - Tensors are contiguous and on the CPU; at size 1 calls in place take any device. Any dtype can be moved; float,
//    double, bfloat16, half, int64, int32 and uint8 can be reduced. bfloat16 and half are summed in float and rounded
//    once.
//  - A sum is taken in rank order, element by element: the same layout gives the same bits, always.
//  - Tensors made with shared_empty() lie in the arena of the local ranks and are reduced in place; any other tensor is
//    staged through the arena in pieces, which costs about three times as much.
//  - An asynchronous call posts its arrival and returns. The work itself is done by whichever rank is inside wait() or
//    progress(): no helper thread takes a core from compute. Call progress() at the borders of units. The tensors of a
//    call must not be touched before its wait() has returned; the Work keeps them alive.
//  - Every wait has a deadline, timeout(). Errors are WorkerError and tell rank, host, axis, operation, sequence
//    number, shape, elapsed time, and who did not arrive and why (dead, stopped, or late and where it is). After an
//    error the communicator is dead: every later call, on every rank, fails with the first error's text.
//  - One thread at a time uses a communicator. At size 1 every call returns at once and moves nothing between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/reduce_op.h"

namespace trireme::comm {

class Group;
class Operation;

/// The handle of an asynchronous call. Empty handles, and those of size 1, are done.
class Work {
 public:
  Work() = default;
  Work(std::shared_ptr<Group> group, std::shared_ptr<Operation> operation);

  /// Blocks until the result is in place and the inputs may be changed. Throws WorkerError. A second call returns at
  /// once.
  void wait();
  /// With a deadline of its own in place of the communicator's.
  void wait(std::chrono::milliseconds timeout);
  /// Does what can be done without blocking; true when wait() would return at once. Throws as wait() does.
  bool done();

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Operation> operation_;
};

/// How a tensor of shared_empty() lies in the arena.
enum class Sharing {
  each,  ///< every rank has a tensor of its own, which its peers can reach: gradients, and whatever is reduced in place
  once,  ///< one memory for all ranks: who writes which part, and when it may be read, is the callers' agreement
};

class Communicator {
 public:
  /// The communicator of an axis of one rank.
  static std::shared_ptr<Communicator> solo(std::string axis);
  explicit Communicator(std::shared_ptr<Group> group);
  ~Communicator();

  int64_t rank() const;
  int64_t size() const;
  const std::string& axis() const;
  /// Deadline of every wait.
  std::chrono::milliseconds timeout() const;

  /// Reduces `tensor` over the ranks, in place.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum);
  [[nodiscard]] Work all_reduce_async(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum);

  /// output[size * n] = the inputs [n] of all ranks, in rank order. Shapes are free, element counts count.
  void all_gather_into(const at::Tensor& output, const at::Tensor& input);
  [[nodiscard]] Work all_gather_into_async(const at::Tensor& output, const at::Tensor& input);

  /// output[n] = block `rank()` of the reduction of the inputs [size * n].
  void reduce_scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::sum);
  [[nodiscard]] Work reduce_scatter_into_async(const at::Tensor& output, const at::Tensor& input,
                                               ReduceOp op = ReduceOp::sum);

  /// `tensor` of rank `root` to all, in place.
  void broadcast(const at::Tensor& tensor, int64_t root);
  [[nodiscard]] Work broadcast_async(const at::Tensor& tensor, int64_t root);

  /// Block r of output [size * n] = block `rank()` of rank r's input [size * n].
  void all_to_all_into(const at::Tensor& output, const at::Tensor& input);
  [[nodiscard]] Work all_to_all_into_async(const at::Tensor& output, const at::Tensor& input);

  /// Point to point. Messages between one pair of ranks arrive in order; they do not take part in the order of
  /// collectives. send() returns when `tensor` may be changed, which may be before it is received.
  void send(const at::Tensor& tensor, int64_t to);
  [[nodiscard]] Work send_async(const at::Tensor& tensor, int64_t to);
  void recv(const at::Tensor& tensor, int64_t from);
  [[nodiscard]] Work recv_async(const at::Tensor& tensor, int64_t from);

  void barrier();
  [[nodiscard]] Work barrier_async();

  /// Does what pending calls allow without blocking. Call it at the borders of units of compute. Throws as wait() does.
  void progress();

  /// A new tensor in the arena of the local ranks (an ordinary tensor at size 1); zero at first, 64-byte aligned.
  /// Collective in effect: every rank makes the same calls in the same order, and a difference is an error that shows
  /// both calls. It does not wait for the peers. The memory lives as long as the communicator's arena, so allocate once
  /// and keep it.
  at::Tensor shared_empty(const std::string& name, at::IntArrayRef sizes, at::ScalarType dtype,
                          Sharing sharing = Sharing::each);

  /// Helpers of the host; each is one small collective.
  int64_t all_reduce_scalar(int64_t value, ReduceOp op = ReduceOp::sum);
  double all_reduce_scalar(double value, ReduceOp op = ReduceOp::sum);
  /// Whether the flag is set on any rank: how a decision that changes control flow becomes the same everywhere.
  bool any(bool flag);
  /// The texts of all ranks, in rank order.
  std::vector<std::string> all_gather_strings(const std::string& text);

  /// Tells the peers that this rank gives up: their current and later calls fail at once with this text. A rank that
  /// throws out of training calls it. `with_record`: logs this rank's last operations. Never throws; the first message
  /// stays.
  void abort(const std::string& message, bool with_record = true) noexcept;

  const std::shared_ptr<Group>& group() const { return group_; }

 private:
  std::shared_ptr<Group> group_;
};

}  // namespace trireme::comm
