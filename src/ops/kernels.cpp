#include "ops/kernels.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace trireme::ops {

#define TRIREME_DECLARE_LEVEL(level)       \
  namespace level {                        \
  const Kernels<Bf16>& bf16_kernels();     \
  const Kernels<float>& float_kernels();   \
  const Kernels<double>& double_kernels(); \
  }
TRIREME_DECLARE_LEVEL(portable)
#ifdef TRIREME_X86_LEVELS
TRIREME_DECLARE_LEVEL(avx2)
TRIREME_DECLARE_LEVEL(avx512)
#endif

namespace {

enum class Level { portable, avx2, avx512 };

Level best_level() {
#ifdef TRIREME_X86_LEVELS
  if (__builtin_cpu_supports("x86-64-v4")) return Level::avx512;
  if (__builtin_cpu_supports("x86-64-v3")) return Level::avx2;
#endif
  return Level::portable;
}

Level choose_level() {
  const Level best = best_level();
  const char* wish = std::getenv("TRIREME_KERNELS");
  if (wish == nullptr || *wish == '\0') return best;
  const std::string_view name(wish);
  Level level;
  if (name == "portable")
    level = Level::portable;
  else if (name == "avx2")
    level = Level::avx2;
  else if (name == "avx512")
    level = Level::avx512;
  else
    throw_input("TRIREME_KERNELS={} is not known; portable, avx2 and avx512 are", name);
  if (level > best) throw_input("TRIREME_KERNELS={} asks for instructions that this CPU does not have", name);
  return level;
}

Level level() {
  static const Level chosen = choose_level();
  return chosen;
}

}  // namespace

const char* kernel_level() {
  switch (level()) {
    case Level::avx512:
      return "avx512";
    case Level::avx2:
      return "avx2";
    case Level::portable:
      break;
  }
  return "portable";
}

#ifdef TRIREME_X86_LEVELS
#define TRIREME_SELECT(name) \
  (level() == Level::avx512 ? avx512::name() : level() == Level::avx2 ? avx2::name() : portable::name())
#else
#define TRIREME_SELECT(name) portable::name()
#endif

template <>
const Kernels<Bf16>& kernels<Bf16>() {
  static const Kernels<Bf16>& table = TRIREME_SELECT(bf16_kernels);
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
