// How often each piece occurs in a set of files: all that training needs to know of the text.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/bpe_merge.h"
#include "data/split.h"

namespace trireme::data {

class PieceCounts {
 public:
  /// Longest piece that is kept whole. A longer one (base64, a run of one letter) counts as successive parts of this
  /// length: no token worth having is longer, and each merge visits the whole of a piece.
  static constexpr size_t kMaxBytes = 256;

  using Map = std::unordered_map<std::string_view, int64_t, BytesHash>;

  void add(std::string_view piece, int64_t count = 1);
  void add(const PieceCounts& other);

  const Map& counts() const { return counts_; }
  int64_t total() const { return total_; }

 private:
  std::string_view keep(std::string_view bytes);

  Map counts_;  ///< keys are views into blocks_
  std::deque<std::string> blocks_;
  int64_t total_ = 0;
};

/// Splits all files and counts their pieces with `threads` threads. Large files are cut where the pattern cuts anyway,
/// so the counts depend neither on the threads nor on the order of the files. Throws one InputError that names every
/// file that cannot be read.
/// `text_field`: of the lines of .jsonl files.
PieceCounts count_pieces(std::span<const std::filesystem::path> files, const Splitter& splitter, int threads,
                         const std::string& text_field = "text");

}  // namespace trireme::data
