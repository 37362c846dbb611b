// A communicator: the ranks of one mesh axis, and the collectives among them on tensors.
//
// Contract
//  - Every rank of the axis makes the same calls in the same order, with the same dtype and element count. A call that
//    differs from its peers' is an error on every rank that shows both sides' calls; it is not a hang.
//  - Tensors are contiguous and on the CPU, or over NCCL all of a call on this rank's GPU or all on the CPU (the latter
//    are copied); at size 1 calls in place take any device. Any dtype can be moved; float, double, bfloat16, half,
//    int64, int32 and uint8 can be reduced. bfloat16 and half are summed in float and rounded once.
//  - A sum is taken in rank order, element by element: the same layout gives the same bits, always.
//  - Tensors made with shared_empty() lie in the arena of the local ranks and are reduced in place; any other tensor is
//    staged through the arena in pieces, which costs about three times as much. Over MPI and NCCL there is no arena,
//    and no difference; memory of a GPU comes from torch.
//  - Over NCCL a call begins once the GPU has done what the current stream was given before it, and wait() blocks the
//    host until the result is there: any stream may use it then.
//  - An asynchronous call posts its arrival and returns. The work itself is done by whichever rank is inside wait() or
//    progress(): no helper thread takes a core from compute. Call progress() at the borders of units. The tensors of a
//    call must not be touched before its wait() has returned; the Work keeps them alive.
//  - Every wait has a deadline, timeout(). Errors are WorkerError and tell rank, host, axis, operation, sequence
//    number, shape, elapsed time, and who did not arrive and why (dead, stopped, or late and where it is). After an
//    error the communicator is dead: every later call, on every rank, fails with the first error's text.
//  - One thread at a time uses a communicator. At size 1 every call returns at once and moves nothing between ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

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
  Work(std::shared_ptr<Group> group, std::vector<std::shared_ptr<Operation>> operations);

  /// Blocks until the result is in place and the inputs may be changed. Throws WorkerError. A second call returns at
  /// once.
  void wait();
  /// With a deadline of its own in place of the communicator's.
  void wait(std::chrono::milliseconds timeout);
  /// Does what can be done without blocking; true when wait() would return at once. Throws as wait() does.
  bool done();
  /// Also waits for `other`, of the same communicator.
  void add(Work other);

 private:
  std::shared_ptr<Group> group_;
  std::vector<std::shared_ptr<Operation>> operations_;
};

/// One message of a batch.
struct Message {
  static Message send(at::Tensor tensor, int64_t to) { return {true, std::move(tensor), to}; }
  static Message recv(at::Tensor tensor, int64_t from) { return {false, std::move(tensor), from}; }

  bool sends = false;
  at::Tensor tensor;
  int64_t peer = 0;
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

  /// A communicator of some of this one's ranks, in this order; only they call it, and over shared memory nobody waits.
  /// They must make the same such calls in the same order.
  std::shared_ptr<Communicator> subgroup(const std::vector<int64_t>& ranks, const std::string& axis);
  /// MPI_Comm_split: ranks that give the same color are a communicator, in the order of their keys (equal ones: of
  /// their ranks here). A negative color gives null. One small collective of this communicator.
  std::shared_ptr<Communicator> split(int64_t color, int64_t key, const std::string& axis);

  int64_t rank() const;
  int64_t size() const;
  const std::string& axis() const;
  /// Deadline of every wait.
  std::chrono::milliseconds timeout() const;
  /// Whether ranks reach each other's memory: without it, tensors of shared_empty() are each rank's own, those of
  /// Sharing::once too. False at size 1.
  bool shares_memory() const;

  /// Reduces `tensor` over the ranks, in place.
  void all_reduce(const at::Tensor& tensor, Reduction how = {}) { all_reduce_async(tensor, how).wait(); }
  [[nodiscard]] Work all_reduce_async(const at::Tensor& tensor, Reduction how = {});
  /// Several tensors of one dtype in one operation, as all the lists below: one arrival, one result. An empty list is
  /// done.
  void all_reduce(at::TensorList tensors, Reduction how = {}) { all_reduce_async(tensors, how).wait(); }
  [[nodiscard]] Work all_reduce_async(at::TensorList tensors, Reduction how = {});
  /// The same into another tensor; the input stays as it is.
  void all_reduce_into(const at::Tensor& output, const at::Tensor& input, Reduction how = {}) {
    all_reduce_into_async(output, input, how).wait();
  }
  [[nodiscard]] Work all_reduce_into_async(const at::Tensor& output, const at::Tensor& input, Reduction how = {});
  /// The same into the root's tensor alone; the others' stay as they are.
  void reduce(const at::Tensor& tensor, int64_t root, Reduction how = {}) { reduce_async(tensor, root, how).wait(); }
  [[nodiscard]] Work reduce_async(const at::Tensor& tensor, int64_t root, Reduction how = {});
  /// `tensor` of rank `root` to all, in place.
  void broadcast(const at::Tensor& tensor, int64_t root) { broadcast_async(tensor, root).wait(); }
  [[nodiscard]] Work broadcast_async(const at::Tensor& tensor, int64_t root);
  void broadcast(at::TensorList tensors, int64_t root) { broadcast_async(tensors, root).wait(); }
  [[nodiscard]] Work broadcast_async(at::TensorList tensors, int64_t root);

  /// output[size * n] = the inputs [n] of all ranks, in rank order. Shapes are free, element counts count.
  void all_gather_into(const at::Tensor& output, const at::Tensor& input) {
    all_gather_into_async(output, input).wait();
  }
  [[nodiscard]] Work all_gather_into_async(const at::Tensor& output, const at::Tensor& input);
  void all_gather_into(at::TensorList outputs, at::TensorList inputs) { all_gather_into_async(outputs, inputs).wait(); }
  [[nodiscard]] Work all_gather_into_async(at::TensorList outputs, at::TensorList inputs);
  /// Unequal parts: rank r gives rows[r] rows (of dimension 0; none is allowed), and outputs hold the rows of all
  /// ranks. For a list of tensors `rows` is [tensors][size]. Equal on all ranks. Inputs in float may have outputs in
  /// bfloat16 or half: each rank casts its own.
  /// Into memory of Sharing::once each row is written once, by its rank or by one that waits, and only after all have
  /// made the call: with the call a rank says that it reads no more of what was there. So a gathered weight exists once
  /// for all local ranks.
  void all_gather_v(at::TensorList outputs, at::TensorList inputs, at::IntArrayRef rows) {
    all_gather_v_async(outputs, inputs, rows).wait();
  }
  [[nodiscard]] Work all_gather_v_async(at::TensorList outputs, at::TensorList inputs, at::IntArrayRef rows);
  /// All inputs [n] into the root's output [size * n]; elsewhere the output may be undefined.
  void gather(const at::Tensor& output, const at::Tensor& input, int64_t root) {
    gather_async(output, input, root).wait();
  }
  [[nodiscard]] Work gather_async(const at::Tensor& output, const at::Tensor& input, int64_t root);

  /// output[n] = block `rank()` of the reduction of the inputs [size * n].
  void reduce_scatter_into(const at::Tensor& output, const at::Tensor& input, Reduction how = {}) {
    reduce_scatter_into_async(output, input, how).wait();
  }
  [[nodiscard]] Work reduce_scatter_into_async(const at::Tensor& output, const at::Tensor& input, Reduction how = {});
  void reduce_scatter_into(at::TensorList outputs, at::TensorList inputs, Reduction how = {}) {
    reduce_scatter_into_async(outputs, inputs, how).wait();
  }
  [[nodiscard]] Work reduce_scatter_into_async(at::TensorList outputs, at::TensorList inputs, Reduction how = {});
  /// Unequal parts: rank r gets rows[r] rows; `rows` as for all_gather_v.
  void reduce_scatter_v(at::TensorList outputs, at::TensorList inputs, at::IntArrayRef rows, Reduction how = {}) {
    reduce_scatter_v_async(outputs, inputs, rows, how).wait();
  }
  [[nodiscard]] Work reduce_scatter_v_async(at::TensorList outputs, at::TensorList inputs, at::IntArrayRef rows,
                                            Reduction how = {});
  /// Block r of the root's input [size * n] to rank r's output [n]; elsewhere the input may be undefined.
  void scatter(const at::Tensor& output, const at::Tensor& input, int64_t root) {
    scatter_async(output, input, root).wait();
  }
  [[nodiscard]] Work scatter_async(const at::Tensor& output, const at::Tensor& input, int64_t root);

  /// Block r of output [size * n] = block `rank()` of rank r's input [size * n].
  void all_to_all_into(const at::Tensor& output, const at::Tensor& input) {
    all_to_all_into_async(output, input).wait();
  }
  [[nodiscard]] Work all_to_all_into_async(const at::Tensor& output, const at::Tensor& input);
  /// Unequal parts: input_rows[r] rows go to rank r, output_rows[r] come from it. What one rank sends and the other
  /// expects is compared.
  void all_to_all_v(const at::Tensor& output, const at::Tensor& input, at::IntArrayRef output_rows,
                    at::IntArrayRef input_rows) {
    all_to_all_v_async(output, input, output_rows, input_rows).wait();
  }
  [[nodiscard]] Work all_to_all_v_async(const at::Tensor& output, const at::Tensor& input, at::IntArrayRef output_rows,
                                        at::IntArrayRef input_rows);

  /// Point to point. Messages between one pair of ranks arrive in order; they do not take part in the order of
  /// collectives. send() returns when `tensor` may be changed, which may be before it is received.
  void send(const at::Tensor& tensor, int64_t to) { send_async(tensor, to).wait(); }
  [[nodiscard]] Work send_async(const at::Tensor& tensor, int64_t to);
  void recv(const at::Tensor& tensor, int64_t from) { recv_async(tensor, from).wait(); }
  [[nodiscard]] Work recv_async(const at::Tensor& tensor, int64_t from);
  /// A batch: all are posted before any is waited for, so no order of them can lock ranks up. One Work for all.
  void send_recv(at::ArrayRef<Message> messages) { send_recv_async(messages).wait(); }
  [[nodiscard]] Work send_recv_async(at::ArrayRef<Message> messages);

  void barrier() { barrier_async().wait(); }
  [[nodiscard]] Work barrier_async();

  /// Does what pending calls allow without blocking. Call it at the borders of units of compute. Throws as wait() does.
  void progress();

  /// A new tensor in the arena of the local ranks (an ordinary CPU tensor where ranks share no memory); zero at first,
  /// 64-byte aligned. Collective in effect: every rank makes the same calls in the same order, and in an arena a
  /// difference is an error that shows both calls. It does not wait for the peers. The memory lives as long as the
  /// communicator's arena, so allocate once and keep it.
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
