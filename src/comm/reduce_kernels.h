// Private to comm: the loops of reduce.h for one instruction set. Included by files that are compiled for it, so
// nothing inline stands here.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "comm/reduce_op.h"

namespace trireme::comm {

struct ReduceKernels {
  void (*reduce)(void* const* outputs, int64_t output_count, const void* const* inputs, int64_t input_count,
                 int64_t count, DType dtype, Reduction how);
  void (*narrow)(void* output, DType to, const float* input, int64_t count);
};
extern const ReduceKernels reduce_baseline;
#ifdef __x86_64__
extern const ReduceKernels reduce_avx2;
extern const ReduceKernels reduce_avx512;
#endif

}  // namespace trireme::comm
