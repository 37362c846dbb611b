// Boxes and fragments: how a rank says which part of which logical tensor it holds.
//
// A logical tensor has a name, a shape and an element type that no layout changes. A rank holds boxes of it. Saving
// takes fragments and loading fills targets; neither asks which parallelism cut them. Boxes are contiguous, row-major
// (last dimension fastest) and little-endian in memory and in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace trireme::checkpoint {

/// A box of a logical tensor: offset and size in each dimension. Without dimensions it is the one element of a scalar.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> size;

  bool operator==(const Box&) const = default;
};

/// What a tensor is, without its values.
struct LogicalTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::f32;

  bool operator==(const LogicalTensor&) const = default;
};

/// A box that a rank holds and offers for saving. `data` holds elements(box) elements and must stay unchanged until
/// save() returns; it may be null when the box is empty. `replicas` ranks hold this very box with the same values, and
/// this is number `replica` of them: they share the writing.
struct Fragment {
  std::string name;
  std::vector<int64_t> shape;  ///< of the whole logical tensor
  Box box;
  DType dtype = DType::f32;
  const std::byte* data = nullptr;
  int64_t replica = 0;
  int64_t replicas = 1;
};

/// A box that a rank wants filled by loading; the twin of Fragment. `data` has room for elements(box) elements.
struct Target {
  std::string name;
  std::vector<int64_t> shape;  ///< of the whole logical tensor
  Box box;
  DType dtype = DType::f32;
  std::byte* data = nullptr;
};

/// The box of a whole tensor of this shape.
Box whole(std::span<const int64_t> shape);
/// Number of elements; 1 for no dimensions, 0 when any size is 0.
int64_t elements(std::span<const int64_t> shape);
int64_t elements(const Box& box);
/// The common part of two boxes of the same tensor; nothing when it has no element.
std::optional<Box> intersect(const Box& a, const Box& b);
/// `[2, 3]`; `[]` for a scalar.
std::string to_text(std::span<const int64_t> numbers);

/// Copies the elements of `part` from a buffer that holds box `source_box` to one that holds `target_box`; `part` lies
/// in both. Buffers are contiguous and row-major, an element has `element_bytes`.
void copy_box(const Box& part, const Box& source_box, const std::byte* source, const Box& target_box, std::byte* target,
              int64_t element_bytes);

/// The part of a replicated fragment that replica number `fragment.replica` writes, found without communication: rows
/// of dimension 0 are split evenly when the box has at least `split_bytes` and a row for each, another box goes whole
/// to one replica chosen by a hash of its name and offset. Over all replicas each element is in exactly one part.
/// Nothing when there is no share.
std::optional<Box> share_of_replica(const Fragment& fragment, int64_t split_bytes = int64_t{1} << 18);

/// Throws InternalError, with the name, when a box does not lie in its shape or `replica` not in `replicas`.
void check_fragment(const Fragment& fragment);

}  // namespace trireme::checkpoint
