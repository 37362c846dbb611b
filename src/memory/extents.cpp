#include "memory/extents.h"

#include <algorithm>
#include <vector>

namespace trireme::memory {

void Extents::insert(char* at, Part part) {
  parts_.emplace(at, part);
  sizes(part.kind).emplace(part.bytes, at);
}

Extents::Part Extents::erase(Parts::iterator part) {
  const auto [at, gone] = *part;
  sizes(gone.kind).erase({gone.bytes, at});
  parts_.erase(part);
  return gone;
}

char* Extents::take_front(Parts::iterator part, size_t bytes) {
  char* at = part->first;
  const Part whole = erase(part);
  if (whole.bytes > bytes) insert(at + bytes, {whole.bytes - bytes, whole.kind});
  return at;
}

std::optional<Extents::Taken> Extents::take(size_t bytes) {
  const auto fit = [&](Kind kind) {
    const auto found = sizes(kind).lower_bound({bytes, nullptr});
    return found == sizes(kind).end() ? parts_.end() : parts_.find(found->second);
  };
  if (const auto part = fit(Kind::backed); part != parts_.end()) return Taken{take_front(part, bytes), 0};
  if (const auto taken = take_across(bytes)) return taken;
  if (const auto part = fit(Kind::bare); part != parts_.end()) return Taken{take_front(part, bytes), bytes};
  return std::nullopt;
}

// From a backed part that is too small and the bare one behind it: the largest such.
std::optional<Extents::Taken> Extents::take_across(size_t bytes) {
  for (auto size = backed_sizes_.rbegin(); size != backed_sizes_.rend(); ++size) {
    const auto part = parts_.find(size->second), next = std::next(part);
    if (next == parts_.end() || next->first != part->first + part->second.bytes) continue;
    if (part->second.bytes + next->second.bytes < bytes) continue;  // the neighbour is bare, or they were one part
    const size_t bare = bytes - part->second.bytes;
    take_front(next, bare);
    char* at = part->first;
    erase(part);
    return Taken{at, bare};
  }
  return std::nullopt;
}

void Extents::give(char* at, size_t bytes, Kind kind) {
  auto next = parts_.lower_bound(at);
  if (next != parts_.begin()) {
    const auto before = std::prev(next);
    if (before->second.kind == kind && before->first + before->second.bytes == at) {
      at = before->first;
      bytes += erase(before).bytes;
    }
  }
  if (next != parts_.end() && next->second.kind == kind && next->first == at + bytes) bytes += erase(next).bytes;
  insert(at, {bytes, kind});
}

size_t Extents::backed_bytes() const {
  size_t total = 0;
  for (const auto& [bytes, at] : backed_sizes_) total += bytes;
  return total;
}

void Extents::release(const std::function<void(char*, size_t)>& give_back) {
  const std::vector<std::pair<size_t, char*>> backed(backed_sizes_.begin(), backed_sizes_.end());
  for (const auto& [bytes, at] : backed) {
    erase(parts_.find(at));
    give_back(at, bytes);
    give(at, bytes, Kind::bare);
  }
}

}  // namespace trireme::memory
