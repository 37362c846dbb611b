// One step as it is planned, pass by pass: what every pipeline rank does when.
#pragma once

#include <vector>

#include "plan/step_time.h"

namespace trireme::plan {

/// What a pipeline rank does for a while. Ranks of the other axes do the same at the same time.
struct Slice {
  enum class Kind { forward, backward, exchange, update };
  Kind kind = Kind::forward;
  int64_t micro_batch = 0, chunk = 0;  ///< of a pass
  double begin = 0, seconds = 0;       ///< from the start of the step
  Terms terms{};                       ///< of a pass: they add up to `seconds`
};
std::string_view name_of(Slice::Kind kind);

/// [pipeline ranks], each in order of time. The longest ends with step_time(): passes as the schedule's table has them,
/// then for all ranks what backward did not hide of the exchange of gradients, and the update. The first gathers of a
/// step are in its first forward pass.
std::vector<std::vector<Slice>> timeline(const Job& job, const Layout& layout);

}  // namespace trireme::plan
