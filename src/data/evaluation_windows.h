// Windows over held-out text for evaluation, in which every token is predicted exactly once.
//
// The stream of the set is prefixed by one end-of-text token, the context of its first token; window w predicts tokens
// [w S, (w + 1) S) of the stream, S = seq_len, from the S tokens before each. Windows do not overlap; the last one is
// filled up with ignored labels. So each byte of text counts once, and
//     bits per byte = (sum of the losses of all labels in nats) / ln 2 / text_bytes().
// End-of-text labels count in the sum and stand for no bytes: the figure is an upper bound, never flattered by them.
//
// With a budget of tokens a prefix of the stream is used, and text_bytes() is exactly that prefix's.
// Batches: all ranks have the same number, so that collectives match; missing windows are rows of ignored labels.
#pragma once

#include <cstdint>
#include <memory>

#include "data/batch.h"
#include "data/dataset.h"

namespace trireme::data {

class EvaluationWindows {
 public:
  /// `max_tokens` <= 0: the whole stream. Throws InputError for an empty set.
  EvaluationWindows(std::shared_ptr<const Dataset> dataset, int64_t seq_len, int64_t micro_batch_size, int64_t rank = 0,
                    int64_t ranks = 1, int64_t max_tokens = 0);

  int64_t batch_count() const { return batches_; }    ///< of this rank; the same on every rank
  Batch batch(int64_t index) const;                   ///< [micro_batch_size, seq_len]
  int64_t tokens() const { return tokens_; }          ///< labels over all ranks
  int64_t text_bytes() const { return text_bytes_; }  ///< bytes of text over all ranks

 private:
  std::shared_ptr<const Dataset> dataset_;
  int64_t seq_len_;
  int64_t micro_batch_size_;
  int64_t rank_;
  int64_t ranks_;
  int64_t tokens_ = 0;
  int64_t windows_ = 0;
  int64_t batches_ = 0;
  int64_t text_bytes_ = 0;
};

}  // namespace trireme::data
