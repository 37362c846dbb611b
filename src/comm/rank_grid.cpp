#include "comm/rank_grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace trireme::comm {

RankGrid::RankGrid(std::vector<GridAxis> axes, int64_t world) : axes_(std::move(axes)), world_(world) {
  std::vector<std::string> faults, product;
  int64_t known = 1;
  GridAxis* open = nullptr;
  for (GridAxis& axis : axes_) {
    const auto same = [&](const GridAxis& other) { return other.name == axis.name; };
    if (std::count_if(axes_.begin(), axes_.end(), same) > 1 &&
        &*std::find_if(axes_.begin(), axes_.end(), same) == &axis)
      faults.push_back(fmt::format("two axes are called {}", axis.name));
    if (axis.size == -1 && open != nullptr) {
      faults.push_back(
          fmt::format("{} and {} are both -1: only one can follow from the others", open->name, axis.name));
    } else if (axis.size == -1) {
      open = &axis;
    } else if (axis.size < 1) {
      faults.push_back(fmt::format("{} = {}: an axis has at least one rank, or -1", axis.name, axis.size));
    } else {
      known *= axis.size;
      if (axis.size > 1) product.push_back(fmt::format("{} {}", axis.name, axis.size));
    }
  }
  const std::string factors = product.empty() ? "1" : fmt::format("{}", fmt::join(product, " x "));
  if (faults.empty() && open != nullptr && world_ % known != 0) {
    faults.push_back(fmt::format("{} ranks cannot be divided by {} = {}, so {} cannot follow from them", world_,
                                 factors, known, open->name));
  } else if (faults.empty() && open == nullptr && known != world_) {
    faults.push_back(fmt::format("{} = {} does not make up the world of {} ranks", factors, known, world_));
  }
  if (!faults.empty()) throw InputError(std::move(faults));
  if (open != nullptr) open->size = world_ / known;
  int64_t stride = 1;
  for (const GridAxis& axis : axes_) {
    strides_.push_back(stride);
    stride *= axis.size;
  }
}

size_t RankGrid::index_of(std::string_view axis) const {
  std::vector<std::string> names;
  for (const GridAxis& known : axes_) names.push_back(known.name);
  const auto at = std::find(names.begin(), names.end(), axis);
  if (at != names.end()) return static_cast<size_t>(at - names.begin());
  const std::string near = nearest(axis, names);
  throw_input("the mesh has no axis {}{}; it has {}", axis,
              near.empty() ? "" : fmt::format(" (did you mean {}?)", near), fmt::join(names, ", "));
}

int64_t RankGrid::size(std::string_view axis) const { return axes_[index_of(axis)].size; }

int64_t RankGrid::coordinate(int64_t rank, std::string_view axis) const {
  const size_t at = index_of(axis);
  return rank / strides_[at] % axes_[at].size;
}

std::vector<int64_t> RankGrid::group_of(int64_t rank, std::span<const std::string> axes) const {
  TRIREME_CHECK(rank >= 0 && rank < world_, "rank {} of {}", rank, world_);
  std::vector<bool> varies(axes_.size(), false);
  for (const std::string& axis : axes) varies[index_of(axis)] = true;
  int64_t first = rank;
  for (size_t a = 0; a < axes_.size(); ++a) {
    if (varies[a]) first -= rank / strides_[a] % axes_[a].size * strides_[a];
  }
  std::vector<int64_t> group = {first};
  for (size_t a = 0; a < axes_.size(); ++a) {
    if (!varies[a]) continue;
    const size_t inner = group.size();
    for (int64_t i = 1; i < axes_[a].size; ++i) {
      for (size_t k = 0; k < inner; ++k) group.push_back(group[k] + i * strides_[a]);
    }
  }
  return group;
}

std::vector<std::vector<int64_t>> RankGrid::groups(std::span<const std::string> axes) const {
  std::vector<std::vector<int64_t>> all;
  for (int64_t rank = 0; rank < world_; ++rank) {
    std::vector<int64_t> group = group_of(rank, axes);
    if (group.front() == rank) all.push_back(std::move(group));
  }
  return all;
}

std::string RankGrid::table() const {
  std::string text = fmt::format("{:<12}{:>6}{:>8}  groups of ranks\n", "axis", "size", "stride");
  for (size_t a = 0; a < axes_.size(); ++a) {
    if (axes_[a].size == 1) continue;
    text += fmt::format("{:<12}{:>6}{:>8} ", axes_[a].name, axes_[a].size, strides_[a]);
    const auto all = groups(std::span(&axes_[a].name, 1));
    for (size_t g = 0; g < std::min<size_t>(all.size(), 3); ++g) {
      constexpr size_t most = 8;
      const std::vector<int64_t> shown(all[g].begin(),
                                       all[g].begin() + static_cast<int64_t>(std::min(all[g].size(), most)));
      text += fmt::format(" [{}{}]", fmt::join(shown, " "), all[g].size() > most ? " ..." : "");
    }
    text += all.size() > 3 ? fmt::format(" ... {} in all\n", all.size()) : "\n";
  }
  return text;
}

void require_same_groups(const RankGrid& first, const RankGrid& second, const std::string& axis) {
  const std::vector<std::string> axes = {axis};
  const auto ones = first.groups(axes), others = second.groups(axes);
  for (size_t g = 0; g < std::min(ones.size(), others.size()); ++g) {
    if (ones[g] == others[g]) continue;
    throw_input("the two layouts have different {} groups: [{}] and [{}]; put {} last in the order", axis,
                fmt::join(ones[g], ", "), fmt::join(others[g], ", "), axis);
  }
  if (ones.size() != others.size())
    throw_input("the two layouts have {} and {} {} groups", ones.size(), others.size(), axis);
}

}  // namespace trireme::comm
