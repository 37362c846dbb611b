// The operator of a reduction, named as the field names it.
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::comm {

enum class ReduceOp : uint8_t { sum, max, min, avg };

constexpr std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
    case ReduceOp::avg:
      return "avg";
  }
  return "?";
}

/// An operator, and for sums a factor that multiplies each input first (NCCL's PreMulSum). avg divides the sum by the
/// number of ranks. Both are for floating-point types alone.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
  /// Of a reduce_scatter of a plain sum: what the output holds is added first, before the inputs of the ranks.
  bool accumulate = false;
  /// Of a plain sum in float or double: the inputs are added in pairs of neighbours, the sums in pairs again, and so on
  /// (where their number is no power of two, the largest such part first). The sum of 2^k ranks is then a sum that any
  /// part of 2^j of them could have taken by itself.
  bool tree = false;

  constexpr Reduction(ReduceOp what = ReduceOp::sum, double pre_factor = 1) : op(what), factor(pre_factor) {}
  static constexpr Reduction accumulating() {
    Reduction how;
    how.accumulate = true;
    return how;
  }
  static constexpr Reduction in_tree() {
    Reduction how;
    how.tree = true;
    return how;
  }
};

}  // namespace trireme::comm
