// The mesh: the ranks of a run, laid out over named axes.
//
// An axis of size 1 has a communicator whose calls are no-ops, so code asks for the axis that it means and never
// whether it is on. Today only `data` may be larger than 1; any other axis that is, is refused by name.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace trireme::comm {

/// Outermost first, as ranks are numbered: neighbouring ranks share the innermost axis, which talks most.
inline constexpr std::array<std::string_view, 7> mesh_axes = {"pipeline", "replicate", "data",  "shard",
                                                              "expert",   "context",   "tensor"};

/// One size for each axis of mesh_axes.
struct MeshSizes {
  int64_t pipeline = 1;
  int64_t replicate = 1;
  int64_t data = 1;
  int64_t shard = 1;
  int64_t expert = 1;
  int64_t context = 1;
  int64_t tensor = 1;

  int64_t of(std::string_view axis) const;
  int64_t product() const;
};

class Mesh {
 public:
  /// `world` has as many ranks as the product of `sizes`; otherwise, and for an axis that is not built, InputError.
  Mesh(std::shared_ptr<Communicator> world, const MeshSizes& sizes);

  /// The communicator of this rank along `axis`; InputError with the nearest name for an axis that is not known.
  Communicator& axis(std::string_view axis) const;
  Communicator& data() const { return axis("data"); }
  Communicator& world() const { return *world_; }

  int64_t rank() const { return world_->rank(); }
  int64_t size() const { return world_->size(); }
  const MeshSizes& sizes() const { return sizes_; }

 private:
  std::shared_ptr<Communicator> world_;
  MeshSizes sizes_;
  std::vector<std::shared_ptr<Communicator>> communicators_;  // in the order of mesh_axes
};

}  // namespace trireme::comm
