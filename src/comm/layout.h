// Private to comm: how the elements of a call lie in the tensors of one side.
//
// A side (input or output) is a list of tensors; each holds `blocks` blocks one after another, one for each rank, or a
// single one. Block b of the call is block b of every tensor, in the order of the tensors: a list of tensors behaves as
// one tensor whose blocks are longer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::comm {

class Layout {
 public:
  Layout() = default;
  /// One tensor of `blocks` blocks of `count` elements.
  Layout(int64_t count, int64_t blocks) : blocks_(blocks), count_(count) {}
  /// `counts` is [tensors], equal blocks, or [tensors][blocks].
  Layout(std::span<const int64_t> counts, int64_t tensors, int64_t blocks);
  /// The tensors that hold block `b` of this layout and nothing else.
  Layout only(int64_t b) const;

  int64_t tensors() const { return counts_.empty() ? 1 : static_cast<int64_t>(counts_.size()) / blocks_; }
  int64_t blocks() const { return blocks_; }
  /// Elements of block b in tensor t.
  int64_t count(int64_t t, int64_t b) const { return counts_.empty() ? count_ : counts_[at(t, b)]; }
  /// Where it starts in the tensor.
  int64_t start(int64_t t, int64_t b) const { return counts_.empty() ? b * count_ : starts_[at(t, b)]; }
  /// Elements of tensor t.
  int64_t tensor(int64_t t) const { return start(t, blocks_ - 1) + count(t, blocks_ - 1); }
  /// Elements of block b, in all tensors.
  int64_t block(int64_t b) const { return counts_.empty() ? count_ : block_ends_[b + 1] - block_ends_[b]; }
  /// Elements of the blocks before b.
  int64_t before(int64_t b) const { return counts_.empty() ? b * count_ : block_ends_[b]; }
  int64_t total() const { return before(blocks_); }
  int64_t largest_block() const;

  /// Elements [first, first + length) of block b, cut at its end, in runs that lie together:
  /// visit(tensor, element of the tensor's block, element of the range, elements).
  template <typename Visit>
  void visit(int64_t b, int64_t first, int64_t length, Visit&& visit) const {
    if (counts_.empty()) {
      const int64_t n = std::min(length, count_ - first);
      if (n > 0) visit(int64_t{0}, first, int64_t{0}, n);
      return;
    }
    int64_t done = 0;
    for (int64_t t = 0; t < tensors() && done < length; ++t) {
      const int64_t here = count(t, b);
      if (first >= here) {
        first -= here;
        continue;
      }
      const int64_t n = std::min(length - done, here - first);
      visit(t, first, done, n);
      done += n;
      first = 0;
    }
  }

 private:
  size_t at(int64_t t, int64_t b) const { return static_cast<size_t>(t * blocks_ + b); }

  int64_t blocks_ = 1;
  int64_t count_ = 0;            // of every block, when there is one tensor with equal blocks
  std::vector<int64_t> counts_;  // [tensors][blocks] otherwise
  std::vector<int64_t> starts_;
  std::vector<int64_t> block_ends_;  // [blocks + 1]: 0, then running sums
};

}  // namespace trireme::comm
