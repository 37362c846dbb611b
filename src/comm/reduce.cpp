#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "base/cpu_level.h"
#include "base/error.h"
#include "comm/reduce_kernels.h"

namespace trireme::comm {

namespace {

const ReduceKernels& kernels() {
#ifdef __x86_64__
  if (cpu_level() >= CpuLevel::avx512) return reduce_avx512;
  if (cpu_level() == CpuLevel::avx2) return reduce_avx2;
#endif
  return reduce_baseline;
}

}  // namespace

namespace {

constexpr int64_t kTreeBlock = 512;  // elements; of a block both halves stay in the first cache

// The sum of elements [first, first + count) of the inputs into `output`, which may be one of them.
void add_tree(void* output, std::span<const void* const> inputs, int64_t first, int64_t count, DType dtype) {
  const int64_t offset = first * size_of(dtype);
  const auto at = [&](size_t i) -> const void* { return static_cast<const std::byte*>(inputs[i]) + offset; };
  const auto add = [&](const void* a, const void* b) {
    const std::array<const void*, 2> terms = {a, b};
    kernels().reduce(&output, 1, terms.data(), 2, count, dtype, ReduceOp::sum);
  };
  if (inputs.size() == 1) {
    std::memmove(output, at(0), static_cast<size_t>(count * size_of(dtype)));
    return;
  }
  if (inputs.size() == 2) return add(at(0), at(1));
  alignas(64) std::array<std::byte, kTreeBlock * sizeof(double)> left, right;
  const size_t half = std::bit_floor(inputs.size() - 1);
  add_tree(left.data(), inputs.first(half), first, count, dtype);
  add_tree(right.data(), inputs.subspan(half), first, count, dtype);
  add(left.data(), right.data());
}

}  // namespace

void reduce(std::span<void* const> outputs, std::span<const void* const> inputs, int64_t count, DType dtype,
            Reduction how) {
  if (!how.tree || inputs.size() <= 2 || outputs.empty()) {
    kernels().reduce(outputs.data(), static_cast<int64_t>(outputs.size()), inputs.data(),
                     static_cast<int64_t>(inputs.size()), count, dtype, how);
    return;
  }
  for (int64_t first = 0; first < count; first += kTreeBlock) {
    const int64_t n = std::min(kTreeBlock, count - first);
    alignas(64) std::array<std::byte, kTreeBlock * sizeof(double)> sum;
    add_tree(sum.data(), inputs, first, n, dtype);
    for (void* output : outputs)
      std::memcpy(static_cast<std::byte*>(output) + first * size_of(dtype), sum.data(),
                  static_cast<size_t>(n * size_of(dtype)));
  }
}

void convert(void* output, DType to, const void* input, DType from, int64_t count) {
  TRIREME_CHECK(converts(from, to), "a cast from {} to {}", name_of(from), name_of(to));
  kernels().narrow(output, to, static_cast<const float*>(input), count);
}

}  // namespace trireme::comm
