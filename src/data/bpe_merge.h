// Merges the bytes of one piece into tokens, by rank.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"

namespace trireme::data {

struct BytesHash {
  size_t operator()(std::string_view bytes) const { return hash64(bytes); }
};

/// Which tokens there are and which pairs make one. Immutable; any thread may use it.
class MergeTable {
 public:
  /// `ranks[i]` is the bytes of token i (empty: there is none): no duplicates, all 256 single bytes among them. Keeps
  /// views of them: they must outlive this.
  explicit MergeTable(const std::vector<std::string>& ranks);
  MergeTable(const MergeTable&) = delete;
  MergeTable& operator=(const MergeTable&) = delete;

  /// Appends the ids of one piece: its own id when the piece is a token, else the result of merging. O(n log n) for
  /// long pieces. Throws InputError for a piece of 4 GiB or more.
  void encode_piece(std::string_view piece, std::vector<int32_t>& out) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;  ///< above every rank, so that a minimum never picks it

  struct Slot {
    uint64_t pair = UINT64_MAX;
    uint32_t merged = kNone;
  };

  void add_pair(uint32_t left, uint32_t right, uint32_t merged);
  uint32_t merged(uint32_t left, uint32_t right) const;
  size_t slot_of(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15) >> shift_; }
  void merge_short(std::string_view piece, std::vector<int32_t>& out) const;
  void merge_long(std::string_view piece, std::vector<int32_t>& out) const;

  std::unordered_map<std::string_view, uint32_t, BytesHash> id_of_bytes_;
  std::array<uint32_t, 256> id_of_byte_{};
  std::vector<Slot> slots_;  ///< open addressing, at most half full
  int shift_ = 0;            ///< 64 - log2(slots)
};

}  // namespace trireme::data
