// Kernels of blocks of numbers rounded to 8 or 4 bits, on raw memory and without torch or threads; see quantize.h for
// what a block is. One source (quantize_kernels_impl.cpp) is compiled per instruction-set level, without contraction to
// fused multiply-add: ranks of different levels then round alike, to the bit.
#pragma once

#include <cstdint>

#include "ops/kernels.h"

namespace trireme::ops {

struct QuantizeKernels {
  /// One block: scale and codes of `values` + `residual` (null: none). What rounding lost replaces the residual; a
  /// block with a NaN or an infinity leaves it as it is.
  void (*quantize)(int bits, int64_t count, const float* values, float* residual, float* scale, uint8_t* codes);
  /// out = scale * code.
  void (*to_bf16)(int bits, int64_t count, float scale, const uint8_t* codes, Bf16* out);
  void (*to_f16)(int bits, int64_t count, float scale, const uint8_t* codes, F16* out);
  void (*to_float)(int bits, int64_t count, float scale, const uint8_t* codes, float* out);
  /// sum += scale * code.
  void (*add)(int bits, int64_t count, float scale, const uint8_t* codes, float* sum);
};

const QuantizeKernels& quantize_kernels();

}  // namespace trireme::ops
