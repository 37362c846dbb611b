// How transformers names and lays out the tensors of each architecture: one table, for both directions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "describe/model_shape.h"

namespace trireme::exchange {

/// A tensor of transformers, and the logical tensors it is made of.
struct HfTensor {
  std::string name;
  std::vector<std::string> parts;  ///< logical tensors, stacked along dimension 0
  bool transposed = false;         ///< theirs is the transpose of the stack: GPT-2's Conv1D has [in, out]
  std::vector<int64_t> shape;      ///< theirs
};

/// All tensors of a model of `shape`, in the order of the forward pass. A tied head is left out, as transformers saves
/// it.
std::vector<HfTensor> hf_tensors(const describe::ModelShape& shape);

}  // namespace trireme::exchange
