// Private to parallel: the weights that compute, made from the master weights that each rank of the shard axis holds.
//
// Two ways. Resident: all weights are there all the time, once for all ranks of a machine; each rank writes the rows
// that it updates, and a gather tells the others. Gathered (ZeRO-3, FSDP): only the units about to be used are there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "models/model.h"
#include "ops/quantize.h"
#include "parallel/unit.h"

namespace trireme::parallel {

class Weights : public models::PassObserver {
 public:
  /// Of parameter i of a unit: see nn::Parameter::Memory.
  struct Memory {
    std::vector<at::Tensor> values, masters, copies;
  };

  /// Memory for the parameters of unit `index`; zeros.
  virtual const Memory& memory(size_t index) const = 0;
  /// Blocks until the values of unit `index` are there.
  virtual void use(size_t index) = 0;
  /// The masters of all units have changed, and with them the copies, where there are any.
  virtual void publish() = 0;
  /// Copies follow the masters, however those changed; then publish(). All ranks have to be done reading.
  virtual void refresh() = 0;
  /// From now on values are made from `sources`, which lie as the masters do, one for each parameter of the model; and
  /// from the masters again.
  virtual void substitute(std::span<const at::Tensor> sources) = 0;
  virtual void restore() = 0;

  /// Seconds that use() has waited for other ranks since the last call.
  double take_waited_seconds() { return std::exchange(waited_seconds_, 0.0); }

 protected:
  double waited_seconds_ = 0;
};

/// Zeros for master weights; empty: beside the rest. See DataParallelOptions.
using MasterMemory = std::function<at::Tensor(at::IntArrayRef sizes, at::ScalarType dtype)>;

std::unique_ptr<Weights> make_resident_weights(std::span<const Unit> units, comm::Communicator& shards,
                                               at::Device device, const MasterMemory& master_memory = {});

struct GatherOptions {
  int64_t prefetch = 1;                      ///< units that are gathered ahead of their use
  bool reshard_after_forward = true;         ///< whether blocks give their memory to others; otherwise each has its own
  comm::Communicator* neighbours = nullptr;  ///< that keep a second shard, some of the shard axis; null: nobody
  std::optional<ops::QuantizedFormat> quantized{};  ///< in which weights travel over the shard axis
  MasterMemory master_memory{};
};
std::unique_ptr<Weights> make_gathered_weights(std::span<const Unit> units, comm::Communicator& shards,
                                               at::Device device, const GatherOptions& options);

}  // namespace trireme::parallel
