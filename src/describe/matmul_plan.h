// How our own matrix product is cut into pieces that fit caches (ops/tiled_matmul.h), and the scratch it takes: from
// shapes alone, so that the start-up report can tell it.
#pragma once

#include <cstdint>

namespace trireme::describe {

/// A product [m, k] x [k, n]. The operand with the smaller outer extent (rows of the left one, columns of the right
/// one) is shared: packed a chunk at a time, read by all threads. The other is the own one: a thread takes a block of
/// it, packs that into memory of its own which stays in its second-level cache, and multiplies it with a stretch of the
/// shared chunk. The sum is cut into blocks of steps, whose partial sums are kept in floats.
struct MatmulPlan {
  static constexpr int64_t kPanel = 32;  ///< outer rows or columns that are packed together, and steps of the sum

  MatmulPlan(int64_t m, int64_t n, int64_t k, bool out_is_float, int64_t threads);

  int64_t m, n, k;
  bool left_is_shared;
  int64_t shared, own;     ///< outer extents
  int64_t step, steps;     ///< of the sum: length of a block of it, and how many there are
  int64_t chunk;           ///< of the shared extent, packed at a time ...
  int64_t round;           ///< ... for so many blocks of the sum
  int64_t block, stretch;  ///< of a task: its parts of the own extent and of the chunk
  bool keeps_sums;  ///< of all tasks of a chunk, from round to round; else of the task at hand, where they are needed

  // Elements of scratch: bf16 numbers of the packed chunk and of one thread's packed block, floats of partial sums.
  int64_t packed_size, own_size, sums_size;

  int64_t tasks() const;  ///< of a whole chunk
  int64_t scratch_bytes(int64_t threads) const { return 2 * (packed_size + threads * own_size) + 4 * sums_size; }
};

/// A linear layer [out, in] over `rows` tokens. Its weight's gradient is made in floats, or at once in bf16.
struct LinearShape {
  int64_t rows, in, out;
  bool narrow_gradient = false;
};
/// The most scratch that one of its products takes: the gradients of input and weight; those and the result.
int64_t backward_scratch_bytes(const LinearShape& shape, int64_t threads);
int64_t scratch_bytes(const LinearShape& shape, int64_t threads);

}  // namespace trireme::describe
