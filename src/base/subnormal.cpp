#include "base/subnormal.h"

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace trireme {

void flush_subnormals() {
#if defined(__x86_64__)
  constexpr unsigned kFlushResults = 1U << 15, kFlushOperands = 1U << 6;  // of MXCSR
  _mm_setcsr(_mm_getcsr() | kFlushResults | kFlushOperands);
#elif defined(__aarch64__)
  constexpr uint64_t kFlush = uint64_t{1} << 24;  // of FPCR
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" ::"r"(control | kFlush));
#endif
}

}  // namespace trireme
