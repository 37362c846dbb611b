// The ranks of a world laid out over named axes: numbers only, no communication.
//
// Axes are listed innermost first: the first varies fastest, so neighbouring ranks differ in it, and it gets the
// fastest links. rank = sum over axes of coordinate x the product of the sizes before it (Megatron-LM's RankGenerator,
// and DeviceMesh read from its last dimension).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

struct GridAxis {
  std::string name;
  int64_t size = 1;  ///< -1, of one axis: what the others leave of the world
};

class RankGrid {
 public:
  /// Throws one InputError with every fault: sizes that do not make up `world`, two axes of one name, two sizes of -1.
  RankGrid(std::vector<GridAxis> axes, int64_t world);

  int64_t world() const { return world_; }
  const std::vector<GridAxis>& axes() const { return axes_; }
  /// InputError with the nearest name for an axis that there is not.
  int64_t size(std::string_view axis) const;
  int64_t coordinate(int64_t rank, std::string_view axis) const;

  /// The ranks that differ from `rank` in no other axis than these, in order: the innermost of them varies fastest.
  std::vector<int64_t> group_of(int64_t rank, std::span<const std::string> axes) const;
  /// Every such group once, by its first rank.
  std::vector<std::vector<int64_t>> groups(std::span<const std::string> axes) const;

  /// A table for a person: each axis that is larger than 1, its size, its stride, and its first groups.
  std::string table() const;

 private:
  size_t index_of(std::string_view axis) const;

  std::vector<GridAxis> axes_;
  std::vector<int64_t> strides_;
  int64_t world_;
};

/// The group of `axis` must be the same in two layouts of one world, as that of the pipeline in the dense layers' and
/// the experts': InputError that shows the first groups that differ.
void require_same_groups(const RankGrid& first, const RankGrid& second, const std::string& axis);

}  // namespace trireme::comm
