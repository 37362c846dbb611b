#include "ops/quantize.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>
#include <vector>

#include "ops/dispatch.h"
#include "ops/quantize_kernels.h"
#include "ops/work.h"

namespace trireme::ops {
namespace {

int64_t code_bytes(const QuantizedFormat& format, int64_t elements) {
  return format.bits == 8 ? elements : (elements + 1) / 2;
}

void check(const QuantizedFormat& format, const at::Tensor& values, const at::Tensor& packed) {
  TRIREME_CHECK((format.bits == 8 || format.bits == 4) && format.block > 0 && format.block % 2 == 0,
                "blocks of {} elements of {} bits", format.block, format.bits);
  TRIREME_CHECK(packed.scalar_type() == at::kByte && packed.numel() == format.packed_bytes(values.numel()),
                "{} bytes for {} elements in blocks of {} with {} bits; {} are needed", packed.numel(), values.numel(),
                format.block, format.bits, format.packed_bytes(values.numel()));
}

void check_float(const at::Tensor& values) {
  TRIREME_CHECK(values.scalar_type() == at::kFloat, "blocks are made from float, and this is {}",
                c10::toString(values.scalar_type()));
}

// body(first element, number of elements, index of the block) for each block.
template <typename Body>
void each_block(const QuantizedFormat& format, int64_t elements, Body body) {
  parallel_rows(format.blocks(elements), format.block, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      body(b * format.block, std::min(format.block, elements - b * format.block), b);
  });
}

profile::Work work(const at::Tensor& values, double packed_bytes) { return {.bytes = bytes_of(values) + packed_bytes}; }

struct Packed {
  Packed(const QuantizedFormat& format, const at::Tensor& packed, int64_t elements)
      : scales(static_cast<float*>(packed.data_ptr())),
        codes(data<uint8_t>(packed) + format.blocks(elements) * static_cast<int64_t>(sizeof(float))) {}
  float* scales;
  uint8_t* codes;
};

}  // namespace

int64_t QuantizedFormat::packed_bytes(int64_t elements) const {
  const int64_t bytes = blocks(elements) * static_cast<int64_t>(sizeof(float)) + code_bytes(*this, elements);
  return (bytes + 3) / 4 * 4;
}

void quantize(const QuantizedFormat& format, const at::Tensor& values, const at::Tensor& packed,
              const at::Tensor& residual) {
  const profile::Scope scope(profile::Phase::communication, "quantize",
                             [&] { return work(values, bytes_of(packed, residual, residual)); });
  check(format, values, packed);
  check_float(values);
  if (!on_cpu(values)) return reference::quantize(format, values, packed, residual);
  const float* from = data<float>(values);
  float* kept = data<float>(residual);
  const Packed to(format, packed, values.numel());
  each_block(format, values.numel(), [&](int64_t first, int64_t count, int64_t b) {
    quantize_kernels().quantize(format.bits, count, from + first, kept == nullptr ? nullptr : kept + first,
                                to.scales + b, to.codes + code_bytes(format, first));
  });
}

void dequantize(const QuantizedFormat& format, const at::Tensor& packed, const at::Tensor& values) {
  const profile::Scope scope(profile::Phase::communication, "dequantize",
                             [&] { return work(values, bytes_of(packed)); });
  check(format, values, packed);
  if (!on_cpu(values)) return reference::dequantize(format, packed, values);
  const Packed from(format, packed, values.numel());
  const QuantizeKernels& kernels = quantize_kernels();
  const auto each = [&](auto kernel, auto* to) {
    each_block(format, values.numel(), [&](int64_t first, int64_t count, int64_t b) {
      kernel(format.bits, count, from.scales[b], from.codes + code_bytes(format, first), to + first);
    });
  };
  switch (values.scalar_type()) {
    case at::kBFloat16:
      return each(kernels.to_bf16, data<Bf16>(values));
    case at::kHalf:
      return each(kernels.to_f16, data<F16>(values));
    case at::kFloat:
      return each(kernels.to_float, data<float>(values));
    default:
      throw_internal("blocks become float, bfloat16 or half, not {}", c10::toString(values.scalar_type()));
  }
}

void sum_dequantized(const QuantizedFormat& format, at::TensorList packed, const at::Tensor& sum, bool accumulate) {
  const profile::Scope scope(profile::Phase::communication, "sum of dequantized", [&] {
    double bytes = 0;
    for (const at::Tensor& one : packed) bytes += bytes_of(one);
    return work(sum, bytes);
  });
  check_float(sum);
  for (const at::Tensor& one : packed) check(format, sum, one);
  if (!on_cpu(sum)) return reference::sum_dequantized(format, packed, sum, accumulate);
  std::vector<Packed> from;
  for (const at::Tensor& one : packed) from.emplace_back(format, one, sum.numel());
  float* to = data<float>(sum);
  const QuantizeKernels& kernels = quantize_kernels();
  // Block by block, so that the sum stays in the cache over all that is added.
  each_block(format, sum.numel(), [&](int64_t first, int64_t count, int64_t b) {
    for (size_t i = 0; i < from.size(); ++i) {
      const auto kernel = i == 0 && !accumulate ? kernels.to_float : kernels.add;
      kernel(format.bits, count, from[i].scales[b], from[i].codes + code_bytes(format, first), to + first);
    }
  });
}

namespace reference {
namespace {

// 1/127 and 1/7 in float, not rounded up.
double per_level(const QuantizedFormat& format) { return format.bits == 8 ? 0x1.020408p-7 : 0x1.249248p-3; }

at::Tensor scales_in(const QuantizedFormat& format, const at::Tensor& packed, int64_t elements) {
  return packed.narrow(0, 0, format.blocks(elements) * 4).view(at::kFloat);
}
at::Tensor codes_in(const QuantizedFormat& format, const at::Tensor& packed, int64_t elements) {
  return packed.narrow(0, format.blocks(elements) * 4, code_bytes(format, elements));
}

// [blocks, block], with zeros after the last element.
at::Tensor in_blocks(const QuantizedFormat& format, const at::Tensor& flat) {
  const int64_t blocks = format.blocks(flat.numel());
  return at::constant_pad_nd(flat, {0, blocks * format.block - flat.numel()}).view({blocks, format.block});
}

// Codes of 4 bits lie in halves of each block: [blocks, block] to [blocks, bytes], and back.
at::Tensor two_in_a_byte(const at::Tensor& codes) {
  const int64_t count = codes.size(1), half = (count + 1) / 2;
  const at::Tensor low = codes.narrow(1, 0, half) + 8, high = codes.narrow(1, half, count - half) + 8;
  return low + 16 * at::constant_pad_nd(high, {0, half - high.size(1)}, 8);
}
at::Tensor one_in_a_number(const at::Tensor& bytes, int64_t count) {
  const at::Tensor wide = bytes.to(at::kInt);
  return at::cat({wide.remainder(16), wide.div(16, "floor")}, 1).narrow(1, 0, count) - 8;
}

// of_blocks([blocks, width]) of the first `blocks` blocks, and of_blocks([1, rest]) of the shorter last one.
template <typename Body>
at::Tensor in_whole_and_last(const at::Tensor& numbers, int64_t blocks, int64_t width, Body of_blocks) {
  const int64_t whole = blocks * width, rest = numbers.numel() - whole;
  std::vector<at::Tensor> parts;
  if (whole > 0) parts.push_back(of_blocks(numbers.narrow(0, 0, whole).view({blocks, width}), false).reshape({-1}));
  if (rest > 0) parts.push_back(of_blocks(numbers.narrow(0, whole, rest).view({1, rest}), true).reshape({-1}));
  return at::cat(parts);
}

}  // namespace

void quantize(const QuantizedFormat& format, const at::Tensor& values, const at::Tensor& packed,
              const at::Tensor& residual) {
  const at::NoGradGuard no_grad;
  const int64_t elements = values.numel();
  if (elements == 0) return;
  at::Tensor flat = values.reshape({-1});
  if (residual.defined()) flat = flat + residual.reshape({-1});
  const at::Tensor blocks = in_blocks(format, flat), most = blocks.abs().amax(1);
  const at::Tensor finite = blocks.isfinite().all(1), tiny = most < 0x1p-119;
  const at::Tensor nothing = at::zeros_like(most);
  at::Tensor scales = at::where(tiny, nothing, most * per_level(format));
  const at::Tensor usable = finite.logical_and(tiny.logical_not()).unsqueeze(1);
  const at::Tensor codes =
      at::where(usable, at::round(blocks * scales.reciprocal().unsqueeze(1)), nothing.unsqueeze(1));
  if (residual.defined()) {
    const at::Tensor lost = (blocks - codes * scales.unsqueeze(1)).view({-1}).narrow(0, 0, elements);
    const at::Tensor keep = finite.unsqueeze(1).expand_as(blocks).reshape({-1}).narrow(0, 0, elements);
    at::Tensor(residual).copy_(at::where(keep, lost, residual.reshape({-1})).view(residual.sizes()));
  }
  scales = at::where(finite, scales, at::full_like(scales, std::numeric_limits<float>::quiet_NaN()));
  scales_in(format, packed, elements).copy_(scales);
  const at::Tensor whole = codes.view({-1}).narrow(0, 0, elements).to(at::kInt);
  at::Tensor bytes = whole.to(at::kChar).view(at::kByte);
  if (format.bits == 4) {
    bytes = in_whole_and_last(whole, elements / format.block, format.block, [](const at::Tensor& blocks, bool) {
              return two_in_a_byte(blocks);
            }).to(at::kByte);
  }
  codes_in(format, packed, elements).copy_(bytes);
}

void dequantize(const QuantizedFormat& format, const at::Tensor& packed, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const int64_t elements = values.numel();
  if (elements == 0) return;
  at::Tensor codes = codes_in(format, packed, elements);
  if (format.bits == 8) {
    codes = codes.view(at::kChar).to(at::kFloat);
  } else {
    const auto numbers_of = [&](const at::Tensor& bytes, bool last) {
      return one_in_a_number(bytes, last ? elements % format.block : format.block);
    };
    codes = in_whole_and_last(codes, elements / format.block, format.block / 2, numbers_of).to(at::kFloat);
  }
  const at::Tensor scales = scales_in(format, packed, elements).unsqueeze(1);
  const at::Tensor result = (in_blocks(format, codes) * scales).view({-1}).narrow(0, 0, elements);
  at::Tensor(values).copy_(result.view(values.sizes()));
}

void sum_dequantized(const QuantizedFormat& format, at::TensorList packed, const at::Tensor& sum, bool accumulate) {
  const at::NoGradGuard no_grad;
  at::Tensor total = sum;
  if (!accumulate) total.zero_();
  at::Tensor one = at::empty_like(sum);
  for (const at::Tensor& from : packed) {
    reference::dequantize(format, from, one);
    total.add_(one);
  }
}

}  // namespace reference

}  // namespace trireme::ops
