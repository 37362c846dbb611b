// Private to parallel: what of a torch::nn::Module is divided among ranks, and into which units.
//
// A parameter belongs to the innermost unit around it; what is in none, or in two (a tied weight), to the unit of the
// rest. Two names of one tensor are one parameter. So are two tensors over the same memory; each is a leaf of autograd
// of its own, and their gradients are added.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::parallel {

struct ForeignParameter {
  std::vector<std::string> names;  ///< the first is what it is called in messages
  std::vector<at::Tensor> leaves;
  std::vector<int64_t> sizes;
  bool trainable = false;
};

struct ForeignUnit {
  std::string name;  ///< of the submodule; "rest" for what is in none
  bool rest = false;
  std::vector<size_t> parameters;
};

struct ForeignModule {
  std::vector<ForeignParameter> parameters;
  std::vector<ForeignUnit> units;     ///< the rest first, then in the order of the module; none is empty
  std::vector<at::Tensor> buffers;    ///< whole on every rank
  std::vector<at::Tensor> constants;  ///< parameters that are no weights (of integers): whole on every rank
  at::ScalarType dtype = at::kFloat;  ///< of all parameters
};

/// `units`: names of submodules; without them the children of the module, and of a ModuleList or Sequential among them
/// its children. Throws one InputError with all that cannot be trained so, by name.
ForeignModule take_apart(const torch::nn::Module& module, const std::optional<std::vector<std::string>>& units);

}  // namespace trireme::parallel
