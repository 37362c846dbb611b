#include "data/evaluation_windows.h"

#include <algorithm>

#include "base/error.h"
#include "data/prepare_tokens.h"
#include "data/tokenizer.h"

namespace trireme::data {

EvaluationWindows::EvaluationWindows(std::shared_ptr<const Dataset> dataset, int64_t seq_len, int64_t micro_batch_size,
                                     int64_t rank, int64_t ranks, int64_t max_tokens)
    : dataset_(std::move(dataset)), seq_len_(seq_len), micro_batch_size_(micro_batch_size), rank_(rank), ranks_(ranks) {
  if (seq_len < 1 || micro_batch_size < 1 || ranks < 1 || rank < 0 || rank >= ranks) {
    throw_input(
        "evaluation with seq_len {}, micro_batch_size {}, rank {} of {}: sizes must be at least 1, and the rank below "
        "the number of ranks",
        seq_len, micro_batch_size, rank, ranks);
  }
  if (dataset_->token_count() == 0) throw_input("the held-out data in {} has no tokens", dataset_->folder().string());
  tokens_ = max_tokens <= 0 ? dataset_->token_count() : std::min(max_tokens, dataset_->token_count());
  windows_ = (tokens_ + seq_len_ - 1) / seq_len_;
  const int64_t windows_a_step = ranks_ * micro_batch_size_;
  batches_ = (windows_ + windows_a_step - 1) / windows_a_step;
  if (tokens_ == dataset_->token_count()) {
    text_bytes_ = dataset_->text_bytes();
    return;
  }
  const Tokenizer tokenizer = Tokenizer::load(dataset_->tokenizer_folder());
  if (tokenizer.hash() != dataset_->tokenizer_hash()) {
    throw_input("the tokenizer in {} is not the one that made the data: hash {} was expected, {} found",
                dataset_->tokenizer_folder().string(), dataset_->tokenizer_hash(), tokenizer.hash());
  }
  text_bytes_ = dataset_->text_bytes_of_prefix(tokens_, text_bytes_of_ids(tokenizer));
}

Batch EvaluationWindows::batch(int64_t index) const {
  TRIREME_CHECK(index >= 0 && index < batches_, "evaluation batch {} of {}", index, batches_);
  Batch batch;
  batch.rows = micro_batch_size_;
  batch.seq_len = seq_len_;
  const auto size = static_cast<size_t>(micro_batch_size_ * seq_len_);
  batch.tokens.assign(size, dataset_->end_of_text());
  batch.labels.assign(size, ignored_label);
  for (int64_t row = 0; row < micro_batch_size_; ++row) {
    const int64_t window = (index * ranks_ + rank_) * micro_batch_size_ + row;
    batch.sample_ids.push_back(static_cast<uint64_t>(window));
    const int64_t begin = window * seq_len_;
    const int64_t count = std::min(seq_len_, tokens_ - begin);
    if (count <= 0) continue;  // padding, so that every rank has the same number of batches
    const std::span labels =
        std::span(batch.labels).subspan(static_cast<size_t>(row * seq_len_), static_cast<size_t>(count));
    const std::span tokens =
        std::span(batch.tokens).subspan(static_cast<size_t>(row * seq_len_), static_cast<size_t>(count));
    dataset_->copy_tokens(begin, labels);
    // The input is the stream one earlier; before its first token stands an end-of-text.
    if (begin > 0) dataset_->copy_tokens(begin - 1, tokens.first(1));
    std::copy(labels.begin(), labels.end() - 1, tokens.begin() + 1);
    batch.valid_tokens += count;
  }
  return batch;
}

}  // namespace trireme::data
