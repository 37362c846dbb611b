#include "comm/reduce.h"

#include "base/cpu_level.h"

namespace trireme::comm {

using Kernel = void(void* const*, int64_t, const void* const*, int64_t, int64_t, DType, Reduction);
Kernel reduce_baseline;
#ifdef __x86_64__
Kernel reduce_avx2;
Kernel reduce_avx512;
#endif

namespace {

Kernel* choose_kernel() {
#ifdef __x86_64__
  if (cpu_level() >= CpuLevel::avx512) return reduce_avx512;
  if (cpu_level() == CpuLevel::avx2) return reduce_avx2;
#endif
  return reduce_baseline;
}

}  // namespace

void reduce(std::span<void* const> outputs, std::span<const void* const> inputs, int64_t count, DType dtype,
            Reduction how) {
  static Kernel* const kernel = choose_kernel();
  kernel(outputs.data(), static_cast<int64_t>(outputs.size()), inputs.data(), static_cast<int64_t>(inputs.size()),
         count, dtype, how);
}

}  // namespace trireme::comm
