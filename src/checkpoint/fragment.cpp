#include "checkpoint/fragment.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"

namespace trireme::checkpoint {

Box whole(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), std::vector<int64_t>(shape.begin(), shape.end())};
}

int64_t elements(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

int64_t elements(const Box& box) { return elements(std::span<const int64_t>(box.size)); }

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box part;
  for (size_t i = 0; i < a.size.size(); ++i) {
    const int64_t begin = std::max(a.offset[i], b.offset[i]);
    const int64_t end = std::min(a.offset[i] + a.size[i], b.offset[i] + b.size[i]);
    if (begin >= end) return std::nullopt;
    part.offset.push_back(begin);
    part.size.push_back(end - begin);
  }
  return part;
}

std::string to_text(std::span<const int64_t> numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

namespace {

/// Elements from the start of a buffer that holds `box` to the first element of `part`.
int64_t position(const Box& part, const Box& box) {
  int64_t index = 0;
  for (size_t i = 0; i < box.size.size(); ++i) index = index * box.size[i] + (part.offset[i] - box.offset[i]);
  return index;
}

/// Steps between neighbours in each dimension, in elements.
std::vector<int64_t> strides(const Box& box) {
  std::vector<int64_t> result(box.size.size(), 1);
  for (size_t i = box.size.size(); i-- > 1;) result[i - 1] = result[i] * box.size[i];
  return result;
}

}  // namespace

void copy_box(const Box& part, const Box& source_box, const std::byte* source, const Box& target_box, std::byte* target,
              int64_t element_bytes) {
  if (elements(part) == 0) return;
  // Trailing dimensions that `part` covers fully in both buffers make one run of memory, together with the next one
  // out.
  size_t outer = part.size.size();
  int64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= part.size[outer];
    if (part.size[outer] != source_box.size[outer] || part.size[outer] != target_box.size[outer]) break;
  }
  const std::vector<int64_t> source_strides = strides(source_box), target_strides = strides(target_box);
  const std::byte* from = source + position(part, source_box) * element_bytes;
  std::byte* to = target + position(part, target_box) * element_bytes;
  std::vector<int64_t> index(outer, 0);
  for (;;) {
    std::memcpy(to, from, static_cast<size_t>(run * element_bytes));
    size_t i = outer;
    for (; i > 0; --i) {  // the next index, as an odometer counts
      const size_t d = i - 1;
      from += source_strides[d] * element_bytes;
      to += target_strides[d] * element_bytes;
      if (++index[d] < part.size[d]) break;
      from -= part.size[d] * source_strides[d] * element_bytes;
      to -= part.size[d] * target_strides[d] * element_bytes;
      index[d] = 0;
    }
    if (i == 0) return;
  }
}

std::optional<Box> share_of_replica(const Fragment& fragment, int64_t split_bytes) {
  const Box& box = fragment.box;
  if (elements(box) == 0) {
    // An empty tensor is still named in the checkpoint; an empty box of a tensor with elements is nothing.
    const bool first = std::ranges::all_of(box.offset, [](int64_t offset) { return offset == 0; });
    if (elements(fragment.shape) == 0 && fragment.replica == 0 && first) return whole(fragment.shape);
    return std::nullopt;
  }
  if (fragment.replicas == 1) return box;
  if (box.size.empty() || elements(box) * size_of(fragment.dtype) < split_bytes || box.size[0] < fragment.replicas) {
    std::string where = fragment.name + "@";
    for (const int64_t offset : box.offset) where += std::to_string(offset) + ",";
    const uint64_t owner = hash64(where) % static_cast<uint64_t>(fragment.replicas);
    if (owner != static_cast<uint64_t>(fragment.replica)) return std::nullopt;
    return box;
  }
  const int64_t begin = box.size[0] * fragment.replica / fragment.replicas;
  const int64_t end = box.size[0] * (fragment.replica + 1) / fragment.replicas;
  Box part = box;
  part.offset[0] += begin;
  part.size[0] = end - begin;
  return part;
}

void check_fragment(const Fragment& fragment) {
  const Box& box = fragment.box;
  bool inside = box.offset.size() == fragment.shape.size() && box.size.size() == fragment.shape.size();
  for (size_t i = 0; inside && i < fragment.shape.size(); ++i) {
    inside = box.offset[i] >= 0 && box.size[i] >= 0 && box.offset[i] + box.size[i] <= fragment.shape[i];
  }
  TRIREME_CHECK(inside, "{}: the box at {} of size {} is not in the shape {}", fragment.name, to_text(box.offset),
                to_text(box.size), to_text(fragment.shape));
  TRIREME_CHECK(fragment.replica >= 0 && fragment.replica < fragment.replicas, "{}: replica {} of {}", fragment.name,
                fragment.replica, fragment.replicas);
  TRIREME_CHECK(fragment.data != nullptr || elements(box) == 0, "{}: no data for {} elements", fragment.name,
                elements(box));
}

}  // namespace trireme::checkpoint
