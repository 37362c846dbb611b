// What the model is fed: one micro-batch.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::data {

/// Label of a position that does not count in the loss.
inline constexpr int32_t ignored_label = -100;

struct Batch {
  int64_t rows = 0;
  int64_t seq_len = 0;
  std::vector<int32_t> tokens;       ///< [rows, seq_len], row-major
  std::vector<int32_t> labels;       ///< [rows, seq_len]: the next token, or ignored_label
  int64_t valid_tokens = 0;          ///< labels that are not ignored_label
  std::vector<uint64_t> sample_ids;  ///< [rows]: position in the global order (training) or window (evaluation)
};

}  // namespace trireme::data
