#include "comm/reduce.h"

#include "base/cpu_level.h"
#include "base/error.h"
#include "comm/reduce_kernels.h"

namespace trireme::comm {

namespace {

const ReduceKernels& kernels() {
#ifdef __x86_64__
  if (cpu_level() >= CpuLevel::avx512) return reduce_avx512;
  if (cpu_level() == CpuLevel::avx2) return reduce_avx2;
#endif
  return reduce_baseline;
}

}  // namespace

void reduce(std::span<void* const> outputs, std::span<const void* const> inputs, int64_t count, DType dtype,
            Reduction how) {
  kernels().reduce(outputs.data(), static_cast<int64_t>(outputs.size()), inputs.data(),
                   static_cast<int64_t>(inputs.size()), count, dtype, how);
}

void convert(void* output, DType to, const void* input, DType from, int64_t count) {
  TRIREME_CHECK(converts(from, to), "a cast from {} to {}", name_of(from), name_of(to));
  kernels().narrow(output, to, static_cast<const float*>(input), count);
}

}  // namespace trireme::comm
