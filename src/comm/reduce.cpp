#include "comm/reduce.h"

namespace trireme::comm {

using Kernel = void(void* const*, int64_t, const void* const*, int64_t, int64_t, DType, ReduceOp);
Kernel reduce_baseline;
#ifdef __x86_64__
Kernel reduce_avx2;
Kernel reduce_avx512;
#endif

namespace {

Kernel* choose_kernel() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return reduce_avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return reduce_avx2;
#endif
  return reduce_baseline;
}

}  // namespace

void reduce(std::span<void* const> outputs, std::span<const void* const> inputs, int64_t count, DType dtype,
            ReduceOp op) {
  // Chosen by hand, once: the resolvers of target_clones run before a sanitizer has started, and crash there.
  static Kernel* const kernel = choose_kernel();
  kernel(outputs.data(), static_cast<int64_t>(outputs.size()), inputs.data(), static_cast<int64_t>(inputs.size()),
         count, dtype, op);
}

}  // namespace trireme::comm
