// The mesh: the ranks of a run, laid out over named axes.
//
// An axis of size 1 has a communicator whose calls are no-ops, so code asks for the axis that it means and never
// whether it is on. `data` is the axes that hold the same weights or shards of them, flattened: shard and replicate.
// Experts use ranks of the other axes, so they are a layout of their own over the same world; it must have the same
// pipeline groups (require_same_groups of rank_grid.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/rank_grid.h"

namespace trireme::comm {

/// Innermost first, as ranks are numbered by default: neighbouring ranks share the axis that talks most.
inline constexpr std::array<std::string_view, 6> mesh_axes = {"tensor", "context",   "pipeline",
                                                              "shard",  "replicate", "expert"};

/// The orders that have a name: "default" (mesh_axes) and "megatron" (tp-cp-ep-dp-pp of Megatron-LM). InputError for
/// another.
std::vector<std::string> named_order(std::string_view name);

/// One size for each axis; -1, of one of them, is what the others leave of the world.
struct MeshSizes {
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t pipeline = 1;
  int64_t shard = 1;
  int64_t replicate = 1;
  int64_t expert = 1;

  int64_t of(std::string_view axis) const;
};

class Mesh {
 public:
  /// `order` lists every axis of mesh_axes once, innermost first. Throws one InputError with every fault: an order that
  /// is not such a list, sizes that do not make up the world. Collective in effect, without waiting.
  Mesh(std::shared_ptr<Communicator> world, const MeshSizes& sizes,
       const std::vector<std::string>& order = named_order("default"));

  /// The communicator of this rank along `axis`, or along axes that flatten() has named; InputError with the nearest
  /// name for one that is not known.
  Communicator& axis(std::string_view axis) const;
  Communicator& data() const { return axis("data"); }
  Communicator& world() const { return *world_; }

  /// One communicator of several axes, the innermost varying fastest, known as `name` from now on. All ranks make the
  /// same calls in the same order.
  Communicator& flatten(std::span<const std::string> axes, const std::string& name);
  /// The mesh of these axes alone, with this rank's coordinates in the others: its world are the ranks that differ from
  /// it in these axes.
  Mesh slice(std::span<const std::string> axes, const std::string& name) const;

  int64_t rank() const { return world_->rank(); }
  int64_t size() const { return world_->size(); }
  const RankGrid& grid() const { return grid_; }
  /// This rank's place along an axis.
  int64_t coordinate(std::string_view axis) const { return grid_.coordinate(rank(), axis); }

 private:
  std::shared_ptr<Communicator> group_along(std::span<const std::string> axes, const std::string& name) const;

  std::shared_ptr<Communicator> world_;
  RankGrid grid_;
  std::map<std::string, std::shared_ptr<Communicator>, std::less<>> communicators_;
};

}  // namespace trireme::comm
