// Minimum, maximum, mean and root mean square of a stored tensor, for `trireme inspect --tensors`.
#pragma once

#include <cstdint>

#include "checkpoint/fragment.h"

namespace trireme::checkpoint {

class CheckpointReader;

/// Over finite elements, in double precision. With no finite element all four values are 0.
struct Statistics {
  double minimum = 0, maximum = 0, mean = 0, root_mean_square = 0;
  int64_t not_finite = 0;  ///< NaN and infinite elements
};

Statistics statistics(const CheckpointReader& reader, const LogicalTensor& tensor);

}  // namespace trireme::checkpoint
