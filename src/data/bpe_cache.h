// Remembers the ids of short pieces: natural text is mostly a few thousand words over and over.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace trireme::data {

/// A direct-mapped table of fixed size: a piece has one place, and the newest one keeps it. For one thread and one
/// tokenizer; only speed depends on what it holds.
class PieceCache {
 public:
  static constexpr size_t kMaxBytes = 31;  ///< longest piece that is kept
  static constexpr size_t kMaxIds = 7;     ///< most ids that are kept
  static constexpr int kPlacesLog2 = 15;   ///< 2 MiB in all: the second-level cache of a core holds it

  /// A piece as four words, its bytes filled up with zeros; the last byte is the length, so that no two pieces are
  /// equal.
  struct Key {
    std::array<uint64_t, 4> words{};
    bool operator==(const Key& other) const { return std::memcmp(&words, &other.words, sizeof words) == 0; }
  };
  /// One cache line.
  struct alignas(64) Entry {
    Key key;
    std::array<int32_t, kMaxIds> ids{};
    int32_t count = 0;
  };

  PieceCache() : entries_(size_t{1} << kPlacesLog2) {}

  void clear() { entries_.assign(entries_.size(), Entry{}); }

  /// `readable`: bytes that may be read from piece.data() on, at least piece.size(); with 32 the key is made without a
  /// loop over its bytes. The piece has 1..kMaxBytes bytes.
  static Key make_key(std::string_view piece, size_t readable) {
    Key key;
    if (readable >= sizeof key) {
      std::memcpy(&key, piece.data(), sizeof key);
      for (size_t i = 0; i < 4; ++i) key.words[i] &= kMasks[piece.size()][i];
    } else {
      std::memcpy(&key, piece.data(), piece.size());
    }
    key.words[3] |= uint64_t{piece.size()} << 56;
    return key;
  }

  /// The one place of a key; it holds the key when `entry.key == key`.
  Entry& place(const Key& key) {
    const auto& w = key.words;
    uint64_t mixed = (w[0] ^ std::rotl(w[2] * 0xD6E8FEB86659FD93, 29)) * 0x9E3779B97F4A7C15;
    mixed ^= (w[1] ^ std::rotl(w[3] * 0xA0761D6478BD642F, 31)) * 0xC2B2AE3D27D4EB4F;
    mixed ^= mixed >> 32;
    return entries_[(mixed * 0x9E3779B97F4A7C15) >> (64 - kPlacesLog2)];
  }

 private:
  static_assert(std::endian::native == std::endian::little);
  static constexpr std::array<std::array<uint64_t, 4>, kMaxBytes + 1> kMasks = [] {
    std::array<std::array<uint64_t, 4>, kMaxBytes + 1> masks{};
    for (size_t length = 0; length <= kMaxBytes; ++length) {
      for (size_t byte = 0; byte < length; ++byte) masks[length][byte / 8] |= uint64_t{0xFF} << (byte % 8 * 8);
    }
    return masks;
  }();

  std::vector<Entry> entries_;
};

}  // namespace trireme::data
