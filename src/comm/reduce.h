// Element-wise reduction of several arrays in a fixed order: the arithmetic of all_reduce, reduce and reduce_scatter.
//
// outputs[*][i] = ((inputs[0][i] op inputs[1][i]) op inputs[2][i]) ...; an output may be one of the inputs. bf16 and
// f16 are combined in float and rounded once, to nearest even. max and min give NaN when any input is NaN. avg divides
// the sum by the number of inputs; a factor multiplies each input of a sum before it is added. The result depends on
// the order of the inputs alone, not on how the range is cut nor on the instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "comm/reduce_op.h"

namespace trireme::comm {

/// avg and factors other than 1: floating-point types only (the callers check it).
void reduce(std::span<void* const> outputs, std::span<const void* const> inputs, int64_t count, DType dtype,
            Reduction how);

/// float to bfloat16 or half, rounded to nearest even: what an all_gather into memory of all ranks casts on its way.
void convert(void* output, DType to, const void* input, DType from, int64_t count);
/// Whether convert() knows the pair.
inline bool converts(DType from, DType to) { return from == DType::f32 && (to == DType::bf16 || to == DType::f16); }

}  // namespace trireme::comm
