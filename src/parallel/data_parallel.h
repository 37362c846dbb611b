// Data parallelism: replicas of the weights, gradients summed over the data axis while backward still runs.
//
// Units are the grain (the embedding; each block; final norm with head). The gradients of a unit lie one after another
// in one buffer of the ranks' shared arena. When the last gradient of a unit arrives, on the last micro-batch of a
// step, its all-reduce is posted and backward goes on; the sums are taken whenever a later unit completes, and the rest
// at finish_gradients(). Every reducer sums and nothing divides: the loss is already scaled by 1 / valid tokens of the
// whole global batch.
//
// A gradient is complete by count, not by hook: uses x micro-batches contributions (see nn/parameter.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "memory/caching_allocator.h"
#include "models/model.h"

namespace trireme::parallel {

class DataParallel {
 public:
  /// Gives the model's parameters memory on `device`, zeros at first. `data` must outlive this.
  DataParallel(models::Model& model, comm::Communicator& data, at::Device device);

  /// Initial values, the same on every rank by construction. A run that loads weights goes without: drawing them takes
  /// longer than reading.
  void initialize(uint64_t seed);

  /// Before the first forward of a step that has `micro_batches` of them.
  void begin_step(int64_t micro_batches);
  /// Waits for all sums. Throws InternalError that names a parameter whose gradient did not arrive.
  void finish_gradients();

  /// Seconds of the last step that finish_gradients() spent waiting for communication: what compute did not hide.
  double exposed_seconds() const { return exposed_seconds_; }

 private:
  struct Bucket {
    std::string name;
    std::vector<nn::Parameter*> parameters;
    at::Tensor gradients;  // flat, shared with the other local ranks
    memory::HeldElsewhere held;
    int64_t incomplete = 0;
    comm::Work work;
  };

  void allocate(Bucket& bucket, at::Device device);
  void on_complete(Bucket& bucket);

  comm::Communicator& data_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  double exposed_seconds_ = 0;
};

}  // namespace trireme::parallel
