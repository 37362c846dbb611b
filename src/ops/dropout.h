// Dropout (Srivastava et al., JMLR 15, 2014) whose mask is a pure function of a key and of which element of which
// sample it falls on: the same for any layout and micro-batch, another one at each step (a position in the order of
// samples is never used twice), the same again in recomputation and after a resume. For backward a bit an element is
// kept: to draw them again takes longer than the pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "base/random.h"

namespace trireme::ops {

/// What the masks of one forward pass are drawn from. With probability 0, or without samples, dropout is the identity.
struct Dropout {
  double probability = 0;  ///< below 1
  uint64_t seed = 0;
  at::Tensor samples;  ///< [batch] int64 on the CPU: position of each row in the global order of samples

  bool active() const { return probability > 0 && samples.defined(); }
  /// The key of one place of the model, e.g. "blocks.3.attention.output".
  random::Key key(std::string_view place) const;
};

/// x [batch, ..]: each element is zero with dropout.probability, and otherwise divided by 1 - probability. Element e of
/// row b draws number samples[b] * (elements of a row) + e.
at::Tensor dropout(const at::Tensor& x, const Dropout& dropout, std::string_view place);

}  // namespace trireme::ops
