// Private to parallel: what each rank has of some tensors, packed into bytes that can be exchanged in one call.
//
// Each rank's elements of a tensor are consecutive, and those of rank r + 1 follow those of rank r. They are cut into
// blocks of their own (ops/quantize.h), so who holds what decides where blocks begin. A rank without elements of a
// tensor has no bytes of it. Vectors (norms, biases) are not rounded: they would save next to nothing, and each of
// their numbers acts on all of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "ops/quantize.h"
#include "parallel/unit.h"

namespace trireme::parallel {

class QuantizedParts {
 public:
  /// `elements`: [tensors][ranks], how many each rank has. `exact`: [tensors], whether they travel in float.
  QuantizedParts(const ops::QuantizedFormat& format, std::vector<bool> exact, std::vector<int64_t> elements,
                 int64_t ranks);
  /// As Unit::rank_rows has it.
  static QuantizedParts of_unit(const ops::QuantizedFormat& format, const Unit& unit, int64_t ranks);

  size_t tensors() const { return exact_.size(); }
  int64_t ranks() const { return ranks_; }
  int64_t elements_of_rank(size_t t, int64_t rank) const { return elements_[index(t, rank)]; }
  int64_t elements_in(size_t t) const;  ///< of all ranks
  int64_t first_of_rank(size_t t, int64_t rank) const { return first_[index(t, rank)]; }
  bool exact(size_t t) const { return exact_[t]; }
  /// Packed, of each rank; and of all of them.
  const std::vector<int64_t>& rank_bytes() const { return bytes_; }
  int64_t bytes() const { return bytes_of_all_; }

  /// The part of `rank` of a whole tensor `t`: flat.
  at::Tensor elements_of(const at::Tensor& whole, size_t t, int64_t rank) const;
  /// Where the bytes of `rank` lie in those of all ranks.
  at::Tensor bytes_in(const at::Tensor& bytes_of_all, int64_t rank) const;

  /// `part` [elements_of_rank(t, rank)], float: into its place in the bytes of `rank`. `residual`: as ops::quantize has
  /// it.
  void pack(size_t t, int64_t rank, const at::Tensor& part, const at::Tensor& bytes_of_rank,
            const at::Tensor& residual = {}) const;
  void unpack(size_t t, int64_t rank, const at::Tensor& bytes_of_rank, const at::Tensor& part) const;
  /// `part`, float, has what several ranks packed of `rank`'s elements added to it, in their order.
  void add(size_t t, int64_t rank, at::TensorList bytes_of_rank, const at::Tensor& part) const;

 private:
  size_t index(size_t t, int64_t rank) const { return t * static_cast<size_t>(ranks_) + static_cast<size_t>(rank); }
  int64_t packed_bytes(size_t t, int64_t elements) const;
  at::Tensor packed(size_t t, int64_t rank, const at::Tensor& bytes_of_rank) const;

  ops::QuantizedFormat format_;
  std::vector<bool> exact_;  // [tensors]
  int64_t ranks_;
  std::vector<int64_t> elements_, first_, packed_at_;  // [tensors][ranks]
  std::vector<int64_t> bytes_, bytes_at_;              // [ranks]
  int64_t bytes_of_all_ = 0;
};

/// A gather of which each rank's part travels quantised. All ranks end with the same numbers: a rank's own are rounded
/// as well.
class QuantizedGather {
 public:
  QuantizedGather(comm::Communicator& ranks, QuantizedParts parts) : ranks_(ranks), parts_(std::move(parts)) {}

  const QuantizedParts& parts() const { return parts_; }
  /// Bytes that this rank sends.
  int64_t own_bytes() const { return parts_.rank_bytes()[static_cast<size_t>(ranks_.rank())]; }
  /// `own`: what this rank has of each tensor, in float. `send` [>= own_bytes()] and `received` [>= parts().bytes()]
  /// hold bytes until unpack().
  [[nodiscard]] comm::Work post(at::TensorList own, const at::Tensor& send, const at::Tensor& received,
                                at::TensorList residuals = {}) const;
  /// When that is done: into whole tensors.
  void unpack(const at::Tensor& received, at::TensorList whole) const;

 private:
  comm::Communicator& ranks_;
  QuantizedParts parts_;
};

}  // namespace trireme::parallel
