#include "comm/mesh.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/error.h"
#include "comm/group.h"

namespace trireme::comm {

int64_t MeshSizes::of(std::string_view axis) const {
  const std::array<int64_t, mesh_axes.size()> sizes = {pipeline, replicate, data, shard, expert, context, tensor};
  const auto at = std::find(mesh_axes.begin(), mesh_axes.end(), axis);
  if (at == mesh_axes.end()) {
    const std::vector<std::string> names(mesh_axes.begin(), mesh_axes.end());
    const std::string near = nearest(axis, names);
    throw_input("the mesh has no axis {}{}; it has {}", axis,
                near.empty() ? "" : fmt::format(" (did you mean {}?)", near), fmt::join(names, ", "));
  }
  return sizes[static_cast<size_t>(at - mesh_axes.begin())];
}

int64_t MeshSizes::product() const {
  int64_t product = 1;
  for (const std::string_view axis : mesh_axes) product *= of(axis);
  return product;
}

Mesh::Mesh(std::shared_ptr<Communicator> world, const MeshSizes& sizes) : world_(std::move(world)), sizes_(sizes) {
  std::vector<std::string> faults;
  for (const std::string_view axis : mesh_axes) {
    const int64_t size = sizes.of(axis);
    if (size < 1) faults.push_back(fmt::format("parallel.{} = {}: an axis has at least one rank", axis, size));
    if (size > 1 && axis != "data") {
      faults.push_back(
          fmt::format("parallel.{} = {} is not built yet; parallel.data may be larger than 1", axis, size));
    }
  }
  if (faults.empty() && sizes.product() != world_->size()) {
    faults.push_back(
        fmt::format("parallel.data = {} does not make up the world of {} ranks", sizes.data, world_->size()));
  }
  if (!faults.empty()) throw InputError(std::move(faults));

  const Group& group = *world_->group();
  for (const std::string_view axis : mesh_axes) {
    if (sizes.of(axis) == 1) {
      communicators_.push_back(Communicator::solo(std::string(axis)));
      continue;
    }
    GroupOptions options;
    options.axis = axis;
    options.rank = group.rank();
    options.timeout = group.timeout();
    communicators_.push_back(std::make_shared<Communicator>(std::make_shared<Group>(group.arena(), options)));
  }
}

Communicator& Mesh::axis(std::string_view axis) const {
  static_cast<void>(sizes_.of(axis));  // refuses an unknown name
  const auto at = std::find(mesh_axes.begin(), mesh_axes.end(), axis);
  return *communicators_[static_cast<size_t>(at - mesh_axes.begin())];
}

}  // namespace trireme::comm
