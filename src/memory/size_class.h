// Size classes of the caching allocator's small blocks: four steps for each power of two.
#pragma once

#include <bit>
#include <cstddef>

namespace trireme::memory {

inline constexpr size_t kSmallestBlock = 256;  // a quarter of it, the finest step, keeps blocks aligned to 64 bytes

/// The class whose size is the smallest that holds `bytes`.
constexpr int class_of(size_t bytes) {
  if (bytes <= kSmallestBlock) return 0;
  const int log = std::bit_width(bytes - 1) - 1;  // 2^log < bytes <= 2^(log+1)
  const size_t step = size_t{1} << (log - 2);
  const size_t quarter = (bytes - (size_t{1} << log) + step - 1) / step;  // 1 to 4
  return (log - 8) * 4 + static_cast<int>(quarter);
}

/// Bytes of a block of class `index`.
constexpr size_t size_of_class(int index) {
  const int log = 8 + index / 4;
  return (size_t{1} << log) + static_cast<size_t>(index % 4) * (size_t{1} << (log - 2));
}

}  // namespace trireme::memory
