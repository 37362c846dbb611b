// Numbers rounded to 8 or 4 bits in blocks, for exchanges between ranks (ZeRO++: Wang et al., arXiv:2306.10209,
// sections 3.1 and 3.3).
//
// A block of consecutive elements has one scale, its largest magnitude / 127 (8 bits) or / 7 (4 bits), and of each
// element the nearest multiple of the scale; so no element is off by more than half a scale. The last block of a tensor
// may be shorter. A block in which a number is not finite comes back as NaN in all its elements: what is wrong stays
// visible. A block whose largest magnitude is below 2^-119 comes back as zeros.
//
// Packed: the scales of all blocks in float, then the codes, a byte each or two in a byte, up to a multiple of 4 bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace trireme::ops {

struct QuantizedFormat {
  int bits = 8;         ///< of an element: 8 or 4
  int64_t block = 256;  ///< elements with one scale; even

  bool operator==(const QuantizedFormat&) const = default;
  int64_t blocks(int64_t elements) const { return (elements + block - 1) / block; }
  /// Of `elements` elements, packed.
  int64_t packed_bytes(int64_t elements) const;
};

/// `values`: float, contiguous. `packed`: uint8 [packed_bytes(values.numel())], 4-byte aligned. `residual`: undefined,
/// or float of the same size: it is added to the values, and what rounding lost replaces it (error feedback; Seide et
/// al., "1-bit stochastic gradient descent", 2014). A block that is not finite leaves its residual as it is.
void quantize(const QuantizedFormat& format, const at::Tensor& values, const at::Tensor& packed,
              const at::Tensor& residual = {});
/// `values`: float, bfloat16 or half, contiguous.
void dequantize(const QuantizedFormat& format, const at::Tensor& packed, const at::Tensor& values);
/// sum = the sum of all `packed` in their order, in float; or that added to it.
void sum_dequantized(const QuantizedFormat& format, at::TensorList packed, const at::Tensor& sum, bool accumulate);

/// The same by operators of ATen: what the kernels are tested against, and what runs where they do not.
namespace reference {
void quantize(const QuantizedFormat& format, const at::Tensor& values, const at::Tensor& packed,
              const at::Tensor& residual = {});
void dequantize(const QuantizedFormat& format, const at::Tensor& packed, const at::Tensor& values);
void sum_dequantized(const QuantizedFormat& format, at::TensorList packed, const at::Tensor& sum, bool accumulate);
}  // namespace reference

}  // namespace trireme::ops
