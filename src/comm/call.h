// A call of the torch-free core: what one rank asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "comm/reduce_op.h"

namespace trireme::comm {

enum class Kind : uint8_t { none, all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, barrier, send, recv };

std::string_view name_of(Kind kind);

/// Buffers hold `count` elements of `dtype`, except as noted; n is the size of the group.
///   all_reduce      output (input is the same, or another buffer of its own)
///   all_gather      input, output [n * count]; input may be block `rank` of output
///   reduce_scatter  input [n * count], output; output may be block `rank` of input
///   broadcast       output; `root` is read, the others are written
///   all_to_all      input [n * count], output [n * count], apart from each other
///   barrier         none
///   send, recv      input, output; `root` is the other side
struct Call {
  Kind kind = Kind::none;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;
  int64_t count = 0;
  int64_t root = 0;
  const void* input = nullptr;
  void* output = nullptr;
  std::shared_ptr<void> keep_alive;  ///< held until the call is complete
};

/// An all_reduce whose result replaces its input: ranks then write into each other's buffers.
bool in_place(const Call& call);
/// What must be equal on all ranks, packed: kind, operator, dtype, root, and whether an all_reduce is in place.
uint64_t pack(const Call& call);
/// `all_reduce(sum, F32 x 1024)`, from what pack() gave.
std::string describe(uint64_t packed, int64_t count);
inline std::string describe(const Call& call) { return describe(pack(call), call.count); }

}  // namespace trireme::comm
