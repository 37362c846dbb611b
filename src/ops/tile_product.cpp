// Compiled with AMX's instructions, and run only where have_tile_products(). In a file of its own also since g++ 12's
// header does not say what memory _tile_loadd reads.
#include "ops/tile_product.h"

#include "base/cpu_level.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace trireme::ops {
namespace {

// A tile register: 16 x 16 floats, 16 x 32 numbers of bf16, or 16 pairs of rows by 16 columns of them.
constexpr int64_t kTileRows = 16, kTileStep = 32, kRowBytes = 64;

// Intel's manual, volume 2, LDTILECFG.
struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {kRowBytes, kRowBytes, kRowBytes, kRowBytes, kRowBytes, kRowBytes, kRowBytes, kRowBytes};
  uint8_t rows[16] = {kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows};
};
static_assert(sizeof(Configuration) == 64);
constexpr Configuration kConfiguration;

bool cpu_has_tile_products() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16Products = 1U << 22, kTiles = 1U << 24;
  return (d & kBf16Products) != 0 && (d & kTiles) != 0;
}

// Linux gives the registers, 8 KiB a thread, to processes that ask (Documentation/arch/x86/xstate.rst).
bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool have_tile_products() {
  static const bool have = cpu_has_tile_products() && ask_for_tiles();
  return have;
}

TileRegisters::TileRegisters() {
  _tile_storeconfig(before_);
  _tile_loadconfig(&kConfiguration);
}

TileRegisters::~TileRegisters() { _tile_loadconfig(before_); }

// Registers 0 to 3 are a block of c, two by two, so that each of a and of b that is loaded, in 4 to 7, serves two
// products.

void TileProducts::multiply(int64_t m, int64_t n, int64_t k, const Bf16* a, const Bf16* b, float* c, bool add) const {
  const int64_t a_row = k * 2, b_row = n * 4, c_row = n * 4;  // bytes
  for (int64_t i = 0; i < m; i += 2 * kTileRows) {
    for (int64_t j = 0; j < n; j += 2 * kTileRows) {
      float *top = c + i * n + j, *bottom = top + kTileRows * n;
      if (add) {
        _tile_loadd(0, top, c_row);
        _tile_loadd(1, top + kTileRows, c_row);
        _tile_loadd(2, bottom, c_row);
        _tile_loadd(3, bottom + kTileRows, c_row);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      const Bf16 *left = a + i * k, *right = b + 2 * j;
      for (int64_t l = 0; l < k; l += kTileStep, left += kTileStep, right += kTileStep * n) {
        _tile_loadd(4, left, a_row);
        _tile_loadd(6, right, b_row);
        _tile_loadd(7, right + 2 * kTileRows, b_row);
        _tile_loadd(5, left + kTileRows * k, a_row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, top, c_row);
      _tile_stored(1, top + kTileRows, c_row);
      _tile_stored(2, bottom, c_row);
      _tile_stored(3, bottom + kTileRows, c_row);
    }
  }
}

}  // namespace trireme::ops

#else

#include <cstdlib>

namespace trireme::ops {

bool have_tile_products() { return false; }
TileRegisters::TileRegisters() : before_{} { std::abort(); }
TileRegisters::~TileRegisters() = default;
void TileProducts::multiply(int64_t, int64_t, int64_t, const Bf16*, const Bf16*, float*, bool) const {}

}  // namespace trireme::ops

#endif

namespace trireme::ops {

bool tile_products_apply() { return cpu_level() == CpuLevel::avx512_bf16 && have_tile_products(); }

}  // namespace trireme::ops
