// Private to parallel: a unit of the model as data parallelism sees it, and how its parameters are cut.
//
// Rows of dimension 0 of each parameter are dealt out to the ranks of the shard axis, as evenly as they go: the first
// rank's begin at 0, and rank r's end where rank r + 1's begin. A parameter with fewer rows than ranks leaves some
// without any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "memory/caching_allocator.h"
#include "nn/parameter.h"

namespace trireme::parallel {

/// Tensors one after another in one memory, each from a cache line of its own on.
class Packing {
 public:
  int64_t add(int64_t elements);  ///< where they start
  int64_t elements() const { return elements_; }

 private:
  int64_t elements_ = 0;
};

struct Unit {
  Unit(const nn::Unit& unit, int64_t rank, int64_t ranks);

  std::string name;
  int64_t block =
      -1;  ///< that reads it and nothing else does: of a unit called blocks.N; -1: any part of the model may
  std::vector<nn::Parameter*> parameters;
  std::vector<nn::Rows> rows;        ///< of each parameter, that this rank holds
  std::vector<int64_t> rank_rows;    ///< [parameters][ranks]: how many each rank holds
  std::vector<int64_t> at, held_at;  ///< where each parameter starts, in all of the unit and in what a rank holds of it
  int64_t elements = 0;              ///< of the unit, with the gaps
  int64_t held = 0;                  ///< of the largest part that any rank holds

  /// The parameters in a memory of `elements`, and what this rank holds in one of `held`.
  std::vector<at::Tensor> whole(const at::Tensor& flat) const;
  std::vector<at::Tensor> shards(const at::Tensor& flat) const;
  /// What this rank holds, each in a memory of its own, which `memory` makes of a shape.
  std::vector<at::Tensor> shards(const std::function<at::Tensor(at::IntArrayRef)>& memory) const;
  /// What this rank holds of whole parameters.
  std::vector<at::Tensor> own_rows(const std::vector<at::Tensor>& whole) const;
};

/// Zeros on the device of the model, in memory that the ranks of a machine share where they are on the CPU; counted as
/// `purpose`. What is once for all ranks counts in equal parts.
class SharedTensor {
 public:
  SharedTensor() = default;
  SharedTensor(comm::Communicator& ranks, const std::string& name, int64_t elements, at::ScalarType dtype,
               at::Device device, memory::Purpose purpose, comm::Sharing sharing);
  const at::Tensor& tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;
  memory::HeldElsewhere held_;
};

}  // namespace trireme::parallel
