#include "describe/matmul_plan.h"

#include <algorithm>

namespace trireme::describe {
namespace {

constexpr int64_t kStepsInCache = 1024;           // of the sum: panels of 64 KiB
constexpr int64_t kBlock = 256, kStretch = 1024;  // of a task, at most: 512 KiB packed, 1 MiB of sums
constexpr int64_t kChunkBytes = 8 << 20;          // of the shared operand
constexpr int64_t kLeastChunk = 256;              // below this, packing the own operand again for each costs too much
constexpr int64_t kKeptSums = 8 << 20;            // bytes, kept from round to round
constexpr int64_t kTasksPerThread = 8;            // so that one that is slow leaves the rest to others

constexpr int64_t kPanel = MatmulPlan::kPanel;

int64_t pieces_of(int64_t extent, int64_t size) { return std::max<int64_t>(1, (extent + size - 1) / size); }

// At most `most` (a multiple of kPanel): pieces of one size, of whole panels.
int64_t even(int64_t extent, int64_t most) {
  const int64_t pieces = pieces_of(extent, std::max(most, kPanel));
  return pieces_of((extent + pieces - 1) / pieces, kPanel) * kPanel;
}

}  // namespace

MatmulPlan::MatmulPlan(int64_t m, int64_t n, int64_t k, bool out_is_float, int64_t threads)
    : m(m), n(n), k(k), left_is_shared(m < n), shared(std::min(m, n)), own(std::max(m, n)) {
  step = even(k, kStepsInCache);
  steps = pieces_of(k, step);
  const int64_t width = even(shared, shared + kPanel), in_one_block = kChunkBytes / (2 * step) / kPanel * kPanel;
  const int64_t in_all_blocks = in_one_block / steps / kPanel * kPanel;
  if (in_all_blocks >= std::min(width, kLeastChunk)) {
    chunk = even(shared, in_all_blocks);
    round = steps;
  } else {
    // Sums that are in the result need no memory; others would be as large as it.
    const int64_t kept = out_is_float ? in_one_block : std::max(kLeastChunk, kKeptSums / (4 * own) / kPanel * kPanel);
    chunk = even(shared, std::min(in_one_block, kept));
    round = std::min(steps, std::max<int64_t>(1, in_one_block / chunk));
  }
  block = even(own, kBlock);
  stretch = even(chunk, kStretch);
  while (tasks() < kTasksPerThread * threads && block > 2 * kPanel) block = even(own, block / 2);
  while (tasks() < kTasksPerThread * threads && stretch > 8 * kPanel) stretch = even(chunk, stretch / 2);
  const bool in_blocks = !out_is_float && steps > 1;
  keeps_sums = in_blocks && round < steps;
  packed_size = chunk * step * round;
  own_size = block * step;
  sums_size = in_blocks ? block * stretch * (keeps_sums ? tasks() : threads) : 0;
}

int64_t MatmulPlan::tasks() const { return pieces_of(own, block) * pieces_of(chunk, stretch); }

namespace {

int64_t scratch(int64_t m, int64_t n, int64_t k, bool out_is_float, int64_t threads) {
  return MatmulPlan(m, n, k, out_is_float, threads).scratch_bytes(threads);
}

}  // namespace

int64_t backward_scratch_bytes(const LinearShape& shape, int64_t threads) {
  const auto [rows, in, out, narrow_gradient] = shape;
  return std::max(scratch(rows, in, out, false, threads), scratch(out, in, rows, !narrow_gradient, threads));
}

int64_t scratch_bytes(const LinearShape& shape, int64_t threads) {
  return std::max(scratch(shape.rows, shape.out, shape.in, false, threads), backward_scratch_bytes(shape, threads));
}

}  // namespace trireme::describe
