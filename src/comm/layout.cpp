#include "comm/layout.h"

namespace trireme::comm {

Layout::Layout(std::span<const int64_t> counts, int64_t tensors, int64_t blocks) : blocks_(blocks) {
  const bool equal = static_cast<int64_t>(counts.size()) == tensors && blocks != 1;
  counts_.resize(static_cast<size_t>(tensors * blocks));
  starts_.resize(counts_.size());
  block_ends_.assign(static_cast<size_t>(blocks + 1), 0);
  for (int64_t t = 0; t < tensors; ++t) {
    int64_t start = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      counts_[at(t, b)] = counts[equal ? static_cast<size_t>(t) : at(t, b)];
      starts_[at(t, b)] = start;
      start += counts_[at(t, b)];
      block_ends_[static_cast<size_t>(b + 1)] += counts_[at(t, b)];
    }
  }
  for (size_t b = 1; b < block_ends_.size(); ++b) block_ends_[b] += block_ends_[b - 1];
}

Layout Layout::only(int64_t b) const {
  if (counts_.empty()) return {count_, 1};
  std::vector<int64_t> counts;
  for (int64_t t = 0; t < tensors(); ++t) counts.push_back(count(t, b));
  return {counts, tensors(), 1};
}

int64_t Layout::largest_block() const {
  int64_t largest = 0;
  for (int64_t b = 0; b < blocks_; ++b) largest = std::max(largest, block(b));
  return largest;
}

}  // namespace trireme::comm
