// A call of the torch-free core: what one rank asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "comm/reduce_op.h"

namespace trireme::comm {

enum class Kind : uint8_t {
  none,
  all_reduce,
  reduce,
  all_gather,
  gather,
  reduce_scatter,
  scatter,
  broadcast,
  all_to_all,
  barrier,
  send,
  recv
};

std::string_view name_of(Kind kind);
inline bool is_message(Kind kind) { return kind == Kind::send || kind == Kind::recv; }
inline bool is_reduction(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}
/// One rank has a part of its own: broadcast and scatter from it, reduce and gather to it.
inline bool has_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::gather || kind == Kind::scatter || kind == Kind::broadcast;
}
/// Whoever has a result has the same one.
inline bool is_dealt(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce; }
/// The input has a block for each rank.
inline bool splits_input(Kind kind) {
  return kind == Kind::reduce_scatter || kind == Kind::scatter || kind == Kind::all_to_all;
}
/// The output has a block of each rank.
inline bool joins_output(Kind kind) {
  return kind == Kind::all_gather || kind == Kind::gather || kind == Kind::all_to_all;
}

/// Several tensors in one call, or blocks of unequal size.
struct Extents {
  std::vector<const void*> inputs;  ///< [tensors]; null where this rank has none
  std::vector<void*> outputs;       ///< [tensors]
  /// Elements of each tensor's block: [tensors] when all ranks' blocks are equal, or [tensors][n] with each rank's.
  /// Equal on all ranks, except for all_to_all: there, what goes to each rank.
  std::vector<int64_t> counts;
  std::vector<int64_t> output_counts;  ///< all_to_all: [n], what comes from each rank
};

/// Buffers hold `count` elements of `dtype`, except as noted; n is the size of the group.
///   all_reduce      output (input is the same, or another buffer of its own)
///   reduce          output; only the root's is written
///   all_gather      input, output [n * count]; input may be block `rank` of output
///   gather          input, output [n * count] at the root
///   reduce_scatter  input [n * count], output; output may be block `rank` of input
///   scatter         input [n * count] at the root, output
///   broadcast       output; that of the root is read, the others are written
///   all_to_all      input [n * count], output [n * count], apart from each other
///   barrier         none
///   send, recv      input, output; `root` is the other side
/// With `extents`, count is all elements of the call (of this rank's input for all_to_all), and input and output are
/// not used.
struct Call {
  Kind kind = Kind::none;
  DType dtype = DType::u8;
  Reduction reduction;
  int64_t count = 0;
  int64_t root = 0;
  const void* input = nullptr;
  void* output = nullptr;
  std::shared_ptr<const Extents> extents;
  /// all_gather: the outputs are one memory for all ranks. Each rank's block is written once, and only when all have
  /// posted: posting says that this rank reads no more of what was there.
  bool once = false;
  DType input_dtype = DType::u8;     ///< with `once`: an all_gather may cast (converts()). Not used without it
  bool on_device = false;            ///< inputs and outputs are memory of a device; otherwise of the host
  std::vector<int64_t> shape;        ///< of the (first) tensor, for records and comm.check; may be empty
  std::shared_ptr<void> keep_alive;  ///< held until the call is complete
};

/// An all_reduce or reduce whose result replaces its input: ranks then write into each other's buffers.
bool in_place(const Call& call);
/// What must be equal on all ranks, packed: kind, operator, dtype, root, number of tensors, whether blocks are unequal,
/// whether an all_reduce is in place, whether outputs are one memory, whether a sum is added to the output,
/// whether it is taken in a tree.
uint64_t pack(const Call& call, int64_t ranks);
/// The parts of pack().
struct Unpacked {
  Kind kind;
  ReduceOp op;
  DType dtype;
  bool in_place;
  bool uneven;
  bool once;
  bool accumulate;
  bool tree;
  int64_t root;
  int64_t tensors;
};
Unpacked unpack(uint64_t packed);
/// `all_reduce(sum, F32 x 1024)`, from what pack() gave.
std::string describe(uint64_t packed, int64_t count);

}  // namespace trireme::comm
