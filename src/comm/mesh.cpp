#include "comm/mesh.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/error.h"
#include "comm/group.h"

namespace trireme::comm {
namespace {

RankGrid make_grid(const MeshSizes& sizes, const std::vector<std::string>& order, int64_t world) {
  std::vector<std::string> faults;
  for (const std::string_view axis : mesh_axes) {
    if (std::count(order.begin(), order.end(), axis) != 1)
      faults.push_back(fmt::format("the order of the mesh lists each of {} once; {} is there {} times",
                                   fmt::join(mesh_axes, ", "), axis, std::count(order.begin(), order.end(), axis)));
  }
  for (const std::string& axis : order) {
    if (std::find(mesh_axes.begin(), mesh_axes.end(), axis) == mesh_axes.end())
      faults.push_back(fmt::format("the order of the mesh: there is no axis {}", axis));
  }
  if (!faults.empty()) throw InputError(std::move(faults));
  std::vector<GridAxis> axes;
  for (const std::string& axis : order) axes.push_back({axis, sizes.of(axis)});
  return {std::move(axes), world};
}

}  // namespace

std::vector<std::string> named_order(std::string_view name) {
  if (name == "default") return {mesh_axes.begin(), mesh_axes.end()};
  if (name == "megatron") return {"tensor", "context", "expert", "shard", "replicate", "pipeline"};
  throw_input("there is no order of axes called {}; there are default and megatron", name);
}

int64_t MeshSizes::of(std::string_view axis) const {
  const std::array<int64_t, mesh_axes.size()> sizes = {tensor, context, pipeline, shard, replicate, expert};
  const auto at = std::find(mesh_axes.begin(), mesh_axes.end(), axis);
  TRIREME_CHECK(at != mesh_axes.end(), "axis {}", axis);
  return sizes[static_cast<size_t>(at - mesh_axes.begin())];
}

Mesh::Mesh(std::shared_ptr<Communicator> world, const MeshSizes& sizes, const std::vector<std::string>& order)
    : world_(std::move(world)), grid_(make_grid(sizes, order, world_->size())) {
  for (const GridAxis& axis : grid_.axes()) {
    communicators_[axis.name] = group_along(std::span(&axis.name, 1), axis.name);
  }
  const std::vector<std::string> data = {"shard", "replicate"};
  communicators_["data"] = group_along(data, "data");
}

std::shared_ptr<Communicator> Mesh::group_along(std::span<const std::string> axes, const std::string& name) const {
  const std::vector<int64_t> ranks = grid_.group_of(rank(), axes);
  return world_->subgroup(ranks, name);
}

Communicator& Mesh::axis(std::string_view axis) const {
  const auto found = communicators_.find(axis);
  if (found != communicators_.end()) return *found->second;
  std::vector<std::string> names;
  for (const auto& [name, communicator] : communicators_) names.push_back(name);
  const std::string near = nearest(axis, names);
  throw_input("the mesh has no axis {}{}; it has {}", axis,
              near.empty() ? "" : fmt::format(" (did you mean {}?)", near), fmt::join(names, ", "));
}

Communicator& Mesh::flatten(std::span<const std::string> axes, const std::string& name) {
  if (communicators_.contains(name)) throw_input("the mesh has an axis {} already", name);
  return *(communicators_[name] = group_along(axes, name));
}

Mesh Mesh::slice(std::span<const std::string> axes, const std::string& name) const {
  MeshSizes sizes;
  const auto size_of = [&](std::string_view axis) {
    return std::find(axes.begin(), axes.end(), axis) == axes.end() ? 1 : grid_.size(axis);
  };
  sizes.tensor = size_of("tensor");
  sizes.context = size_of("context");
  sizes.pipeline = size_of("pipeline");
  sizes.shard = size_of("shard");
  sizes.replicate = size_of("replicate");
  sizes.expert = size_of("expert");
  std::vector<std::string> order;
  for (const GridAxis& axis : grid_.axes()) order.push_back(axis.name);
  return {group_along(axes, name), sizes, order};
}

}  // namespace trireme::comm
