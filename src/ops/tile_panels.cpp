// Compiled with the instructions of AMX and of AVX-512 with bf16, and run only where tile_products_apply(). In a file
// of its own also since g++ 12's header does not say what memory _tile_loadd reads and _tile_stored writes.
#include "ops/tile_panels.h"

#if defined(__x86_64__) && defined(__AMX_BF16__)
#include <immintrin.h>

namespace trireme::ops {
namespace {

using Lines = __m512i[16];

// Not std::min: a template that another file shares would be compiled with instructions that not every CPU has.
constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

constexpr int64_t kTileElements = 512, kStepElements = 2 * kTileElements;

// 16 x 16 numbers of 32 bits.
inline void transpose(Lines& x) {
  Lines t;
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    x[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    x[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    x[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    x[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  constexpr int kEven = 0x88, kOdd = 0xdd;  // of the four quarters of a register
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(x[i], x[4 + i], kEven);
    t[4 + i] = _mm512_shuffle_i32x4(x[i], x[4 + i], kOdd);
    t[8 + i] = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], kEven);
    t[12 + i] = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], kOdd);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], kEven);
    x[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], kOdd);
    x[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], kEven);
    x[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], kOdd);
  }
}

// One number of a, one of b, and so on: of the first or the last 16 of 32 each.
struct Interleave {
  alignas(64) uint16_t low[32], high[32];
  constexpr Interleave() : low{}, high{} {
    for (uint16_t i = 0; i < 16; ++i) {
      low[2 * i] = i;
      low[2 * i + 1] = static_cast<uint16_t>(32 + i);
      high[2 * i] = static_cast<uint16_t>(16 + i);
      high[2 * i + 1] = static_cast<uint16_t>(48 + i);
    }
  }
};
constexpr Interleave kInterleave;

inline __mmask32 first_of_32(int64_t n) {
  return n >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((uint64_t{1} << n) - 1);
}
inline __mmask16 first_of_16(int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(~0U) : n <= 0 ? __mmask16{0} : static_cast<__mmask16>((1U << n) - 1);
}

// Lines `begin` to `begin` + 16 of 32 numbers, of which `lines` have the first `width`, all others being 0.
template <bool whole>
inline void load(const Bf16* from, int64_t stride, int64_t begin, int64_t step, int64_t lines, int64_t width,
                 Lines& to) {
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t line = begin + i * step;
    if constexpr (whole) {
      to[i] = _mm512_loadu_si512(from + line * stride);
    } else {
      to[i] =
          line < lines ? _mm512_maskz_loadu_epi16(first_of_32(width), from + line * stride) : _mm512_setzero_si512();
    }
  }
}

inline void store(const Lines& x, Bf16* to) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 32, x[i]);
}

// One step of one panel: two tiles. `from` is its first number; it has `outer` by `k` numbers.
template <bool k_contiguous, bool pairs, bool whole>
inline void pack_step(const Bf16* from, int64_t stride, int64_t outer, int64_t k, Bf16* to) {
  if constexpr (k_contiguous) {
    for (int64_t half = 0; half < 2; ++half) {
      Lines x;
      load<whole>(from, stride, half * 16, 1, outer, k, x);
      if constexpr (pairs) transpose(x);
      store(x, to + half * kTileElements);
    }
  } else {
    Lines even, odd;
    load<whole>(from, stride, 0, 2, k, outer, even);
    load<whole>(from, stride, 1, 2, k, outer, odd);
    const __m512i low = _mm512_load_si512(kInterleave.low), high = _mm512_load_si512(kInterleave.high);
    for (int i = 0; i < 16; ++i) {
      const __m512i first = _mm512_permutex2var_epi16(even[i], low, odd[i]);
      odd[i] = _mm512_permutex2var_epi16(even[i], high, odd[i]);
      even[i] = first;
    }
    if constexpr (!pairs) {
      transpose(even);
      transpose(odd);
    }
    store(even, to);
    store(odd, to + kTileElements);
  }
}

template <bool k_contiguous, bool pairs>
void pack(const PanelSource& source, int64_t first, int64_t outer, int64_t k_first, int64_t k, Bf16* to) {
  const int64_t panel = round_up(k, kPanelStep) * kPanel;
  const auto one = [&](int64_t row, int64_t step) {
    const int64_t rows = least(kPanel, outer - row), steps = least(kPanelStep, k - step);
    const int64_t o = first + row, s = k_first + step;
    const Bf16* from = source.data + (k_contiguous ? o * source.stride + s : s * source.stride + o);
    Bf16* out = to + row / kPanel * panel + step * kPanel;
    if (rows == kPanel && steps == kPanelStep)
      pack_step<k_contiguous, pairs, true>(from, source.stride, rows, steps, out);
    else
      pack_step<k_contiguous, pairs, false>(from, source.stride, rows, steps, out);
  };
  // Along what is contiguous, so that memory is read in long stretches.
  if constexpr (k_contiguous) {
    for (int64_t row = 0; row < outer; row += kPanel)
      for (int64_t step = 0; step < k; step += kPanelStep) one(row, step);
  } else {
    for (int64_t step = 0; step < k; step += kPanelStep)
      for (int64_t row = 0; row < outer; row += kPanel) one(row, step);
  }
}

constexpr int64_t kRow = 64;  // bytes of a row of a tile that is packed

// All that a step needs is loaded before its products: where the other thread of the core is busy, loads and products
// that alternate take a tenth longer.
inline void multiply_steps(const Bf16* left, const Bf16* right, int64_t steps, const void* ahead) {
  const char* fetch = static_cast<const char*>(ahead);
  for (int64_t s = 0; s < steps; ++s, left += kStepElements, right += kStepElements) {
    _tile_loadd(4, left, kRow);
    _tile_loadd(6, right, kRow);
    _tile_loadd(7, right + kTileElements, kRow);
    _tile_loadd(5, left + kTileElements, kRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    if (ahead != nullptr) {
      for (int line = 0; line < 4; ++line) _mm_prefetch(fetch + 64 * line, _MM_HINT_T1);
      fetch += 256;
    }
  }
}

// The compiler does not know that the registers' stores write.
inline void memory_has_changed() { asm volatile("" ::: "memory"); }

inline __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

}  // namespace

void pack_panels(const PanelSource& source, int64_t first, int64_t outer, int64_t k_first, int64_t k, bool pairs,
                 Bf16* to) {
  const auto run = [&](auto how) { how(source, first, outer, k_first, k, to); };
  if (source.k_contiguous)
    run(pairs ? pack<true, true> : pack<true, false>);
  else
    run(pairs ? pack<false, true> : pack<false, false>);
}

void PanelProducts::multiply(const Bf16* left, const Bf16* right, int64_t steps, float* out, int64_t stride, bool add,
                             const void* ahead) const {
  const int64_t bytes = stride * 4;
  float *top = out, *bottom = out + 16 * stride;
  memory_has_changed();
  if (add) {
    _tile_loadd(0, top, bytes);
    _tile_loadd(1, top + 16, bytes);
    _tile_loadd(2, bottom, bytes);
    _tile_loadd(3, bottom + 16, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  multiply_steps(left, right, steps, ahead);
  _tile_stored(0, top, bytes);
  _tile_stored(1, top + 16, bytes);
  _tile_stored(2, bottom, bytes);
  _tile_stored(3, bottom + 16, bytes);
  memory_has_changed();
}

void write_block(const float* sums, int64_t rows, int64_t cols, const PanelOutput& out) {
  const __mmask16 low = first_of_16(cols), high = first_of_16(cols - 16);
  const __mmask32 both = first_of_32(cols);
  __m512 bias_low = _mm512_setzero_ps(), bias_high = _mm512_setzero_ps();
  if (out.bias != nullptr) {
    const __m512i bias = _mm512_maskz_loadu_epi16(both, out.bias);
    bias_low = widen(_mm512_castsi512_si256(bias));
    bias_high = widen(_mm512_extracti64x4_epi64(bias, 1));
  }
  for (int64_t row = 0; row < rows; ++row, sums += kPanel) {
    __m512 first = _mm512_add_ps(_mm512_load_ps(sums), bias_low),
           last = _mm512_add_ps(_mm512_load_ps(sums + 16), bias_high);
    if (out.is_float) {
      float* to = static_cast<float*>(out.data) + row * out.stride;
      _mm512_mask_storeu_ps(to, low, first);
      _mm512_mask_storeu_ps(to + 16, high, last);
    } else {
      Bf16* to = static_cast<Bf16*>(out.data) + row * out.stride;
      if (out.add) {
        const __m512i there = _mm512_maskz_loadu_epi16(both, to);
        first = _mm512_add_ps(first, widen(_mm512_castsi512_si256(there)));
        last = _mm512_add_ps(last, widen(_mm512_extracti64x4_epi64(there, 1)));
      }
      _mm512_mask_storeu_epi16(to, both, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(last, first)));
    }
  }
}

void read_block(const float* from, int64_t stride, int64_t rows, int64_t cols, float* sums) {
  const __mmask16 low = first_of_16(cols), high = first_of_16(cols - 16);
  for (int64_t row = 0; row < kPanel; ++row, sums += kPanel) {
    const bool there = row < rows;
    _mm512_store_ps(sums, there ? _mm512_maskz_loadu_ps(low, from + row * stride) : _mm512_setzero_ps());
    _mm512_store_ps(sums + 16, there ? _mm512_maskz_loadu_ps(high, from + row * stride + 16) : _mm512_setzero_ps());
  }
}

}  // namespace trireme::ops

#else

#include <cstdlib>

namespace trireme::ops {

void pack_panels(const PanelSource&, int64_t, int64_t, int64_t, int64_t, bool, Bf16*) { std::abort(); }
void PanelProducts::multiply(const Bf16*, const Bf16*, int64_t, float*, int64_t, bool, const void*) const {}
void write_block(const float*, int64_t, int64_t, const PanelOutput&) {}
void read_block(const float*, int64_t, int64_t, int64_t, float*) {}

}  // namespace trireme::ops

#endif
