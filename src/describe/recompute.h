// Ways to recompute, for the options of a run, its models, and the description of what is kept.
#pragma once

namespace trireme::describe {

/// What backward makes again in place of keeping it.
enum class Recompute {
  none,
  selective,  ///< the outputs of norms and activations
  full,       ///< whole blocks
};

}  // namespace trireme::describe
