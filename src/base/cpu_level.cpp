#include "base/cpu_level.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace trireme {
namespace {

CpuLevel best_level() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16")) return CpuLevel::avx512_bf16;
  if (__builtin_cpu_supports("x86-64-v4")) return CpuLevel::avx512;
  if (__builtin_cpu_supports("x86-64-v3")) return CpuLevel::avx2;
#endif
  return CpuLevel::portable;
}

CpuLevel choose_level() {
  const CpuLevel best = best_level();
  const char* wish = std::getenv("TRIREME_KERNELS");
  if (wish == nullptr || *wish == '\0') return best;
  const std::string_view name(wish);
  for (const CpuLevel level : {CpuLevel::portable, CpuLevel::avx2, CpuLevel::avx512, CpuLevel::avx512_bf16}) {
    if (name != name_of(level)) continue;
    if (level > best) throw_input("TRIREME_KERNELS={} asks for instructions that this CPU does not have", name);
    return level;
  }
  throw_input("TRIREME_KERNELS={} is not known; portable, avx2, avx512 and avx512_bf16 are", name);
}

}  // namespace

CpuLevel cpu_level() {
  // By hand: the resolvers of target_clones run before a sanitizer has started, and crash there.
  static const CpuLevel chosen = choose_level();
  return chosen;
}

const char* name_of(CpuLevel level) {
  switch (level) {
    case CpuLevel::avx512_bf16:
      return "avx512_bf16";
    case CpuLevel::avx512:
      return "avx512";
    case CpuLevel::avx2:
      return "avx2";
    case CpuLevel::portable:
      break;
  }
  return "portable";
}

}  // namespace trireme
