#include "ops/kernels.h"

#include "base/cpu_level.h"

namespace trireme::ops {

#define TRIREME_DECLARE_LEVEL(level)       \
  namespace level {                        \
  const Kernels<Bf16>& bf16_kernels();     \
  const Kernels<F16>& f16_kernels();       \
  const Kernels<float>& float_kernels();   \
  const Kernels<double>& double_kernels(); \
  }
TRIREME_DECLARE_LEVEL(portable)
#ifdef TRIREME_X86_LEVELS
TRIREME_DECLARE_LEVEL(avx2)
TRIREME_DECLARE_LEVEL(avx512)
TRIREME_DECLARE_LEVEL(avx512_bf16)

#define TRIREME_SELECT(name)                                  \
  (cpu_level() == CpuLevel::avx512_bf16 ? avx512_bf16::name() \
   : cpu_level() == CpuLevel::avx512    ? avx512::name()      \
   : cpu_level() == CpuLevel::avx2      ? avx2::name()        \
                                        : portable::name())
#else
#define TRIREME_SELECT(name) portable::name()
#endif

template <>
const Kernels<Bf16>& kernels<Bf16>() {
  static const Kernels<Bf16>& table = TRIREME_SELECT(bf16_kernels);
  return table;
}
template <>
const Kernels<F16>& kernels<F16>() {
  static const Kernels<F16>& table = TRIREME_SELECT(f16_kernels);
  return table;
}
template <>
const Kernels<float>& kernels<float>() {
  static const Kernels<float>& table = TRIREME_SELECT(float_kernels);
  return table;
}
template <>
const Kernels<double>& kernels<double>() {
  static const Kernels<double>& table = TRIREME_SELECT(double_kernels);
  return table;
}

}  // namespace trireme::ops
