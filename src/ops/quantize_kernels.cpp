#include "ops/quantize_kernels.h"

#include "base/cpu_level.h"

namespace trireme::ops {

namespace portable {
const QuantizeKernels& quantize_table();
}
#ifdef TRIREME_X86_LEVELS
namespace avx2 {
const QuantizeKernels& quantize_table();
}
namespace avx512 {
const QuantizeKernels& quantize_table();
}
namespace avx512_bf16 {
const QuantizeKernels& quantize_table();
}
#endif

const QuantizeKernels& quantize_kernels() {
#ifdef TRIREME_X86_LEVELS
  static const QuantizeKernels& table = cpu_level() == CpuLevel::avx512_bf16 ? avx512_bf16::quantize_table()
                                        : cpu_level() == CpuLevel::avx512    ? avx512::quantize_table()
                                        : cpu_level() == CpuLevel::avx2      ? avx2::quantize_table()
                                                                             : portable::quantize_table();
#else
  static const QuantizeKernels& table = portable::quantize_table();
#endif
  return table;
}

}  // namespace trireme::ops
