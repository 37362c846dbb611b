#include "data/bpe_trainer.h"

#include <queue>
#include <unordered_map>

#include "base/error.h"

namespace trireme::data {
namespace {

constexpr int64_t kLeastCount = 2;

/// A piece as tokens; it shrinks in place as pairs merge.
struct Word {
  uint64_t begin;  ///< in the store of all tokens
  uint32_t size;
  int64_t count;
};

struct Pair {
  uint64_t key = 0;  ///< left << 32 | right: smaller keys are smaller pairs
  int64_t count = 0;
  std::vector<uint32_t> words;  ///< those where the pair stands or stood; one may come more than once
};

uint64_t key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

struct KeyHash {
  size_t operator()(uint64_t key) const { return (key * 0x9E3779B97F4A7C15) >> 20; }
};

/// What the heap orders: the most frequent first, then the smaller pair.
struct Candidate {
  int64_t count;
  uint64_t key;
  uint32_t pair;
  bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : key > other.key; }
};

class Trainer {
 public:
  Trainer(const PieceCounts& counts, int64_t tokens) : tokens_(static_cast<size_t>(tokens)) {
    for (int byte = 0; byte < 256; ++byte) ranks_.emplace_back(1, static_cast<char>(byte));
    for (const auto& [piece, count] : counts.counts()) {
      if (piece.size() < 2) continue;
      TRIREME_CHECK(words_.size() < UINT32_MAX, "more than 2^32 distinct pieces");
      words_.push_back({store_.size(), static_cast<uint32_t>(piece.size()), count});
      for (const char c : piece) store_.push_back(static_cast<unsigned char>(c));
    }
    for (uint32_t word = 0; word < words_.size(); ++word) {
      const uint32_t* tokens_of = &store_[words_[word].begin];
      for (uint32_t i = 0; i + 1 < words_[word].size; ++i) gain(key(tokens_of[i], tokens_of[i + 1]), word);
    }
    push_gained();
  }

  std::vector<std::string> run() {
    while (ranks_.size() < tokens_ && !heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      // Counts in the heap are never too small: a pair only gains while it is new, and is pushed after that. So a count
      // that still holds is the greatest, and one that does not goes back with the true one.
      const int64_t count = pairs_[best.pair].count;
      if (count != best.count) {
        if (count >= kLeastCount) heap_.push({count, best.key, best.pair});
        continue;
      }
      merge(best);
    }
    return std::move(ranks_);
  }

 private:
  void gain(uint64_t pair, uint32_t word) {
    const auto [found, fresh] = index_.try_emplace(pair, static_cast<uint32_t>(pairs_.size()));
    if (fresh) {
      TRIREME_CHECK(pairs_.size() < UINT32_MAX, "more than 2^32 pairs");
      pairs_.emplace_back().key = pair;
      gained_.push_back(found->second);
    }
    Pair& p = pairs_[found->second];
    p.count += words_[word].count;
    if (p.words.empty() || p.words.back() != word) p.words.push_back(word);
  }

  /// New pairs enter the heap once their counts are complete.
  void push_gained() {
    for (const uint32_t pair : gained_) {
      if (pairs_[pair].count >= kLeastCount) heap_.push({pairs_[pair].count, pairs_[pair].key, pair});
    }
    gained_.clear();
  }

  void merge(const Candidate& best) {
    const auto left = static_cast<uint32_t>(best.key >> 32), right = static_cast<uint32_t>(best.key);
    const auto token = static_cast<uint32_t>(ranks_.size());
    ranks_.push_back(ranks_[left] + ranks_[right]);
    const std::vector<uint32_t> words = std::move(pairs_[best.pair].words);
    for (const uint32_t word : words) merge_in(word, left, right, token);
    push_gained();
  }

  /// Replaces the pair in one word. Only pairs that touch a replaced position change their counts.
  void merge_in(uint32_t word, uint32_t left, uint32_t right, uint32_t token) {
    Word& w = words_[word];
    uint32_t* tokens = &store_[w.begin];
    old_.assign(tokens, tokens + w.size);
    taken_.assign(w.size, false);
    uint32_t size = 0;
    for (uint32_t i = 0; i < w.size; ++i, ++size) {
      const bool here = i + 1 < w.size && old_[i] == left && old_[i + 1] == right;
      tokens[size] = here ? token : old_[i];
      if (here) {
        taken_[i] = taken_[i + 1] = true;
        ++i;
      }
    }
    if (size == w.size) return;  // merged away here before
    for (uint32_t i = 0; i + 1 < w.size; ++i) {
      if (taken_[i] || taken_[i + 1]) pairs_[index_.find(key(old_[i], old_[i + 1]))->second].count -= w.count;
    }
    w.size = size;
    for (uint32_t i = 0; i + 1 < size; ++i) {
      if (tokens[i] == token || tokens[i + 1] == token) gain(key(tokens[i], tokens[i + 1]), word);
    }
  }

  const size_t tokens_;
  std::vector<std::string> ranks_;
  std::vector<Word> words_;
  std::vector<uint32_t> store_;
  std::vector<Pair> pairs_;
  std::unordered_map<uint64_t, uint32_t, KeyHash> index_;
  std::priority_queue<Candidate> heap_;
  std::vector<uint32_t> gained_;  ///< pairs that are new since the last push
  std::vector<uint32_t> old_;     // scratch of merge_in
  std::vector<char> taken_;
};

}  // namespace

std::vector<std::string> train_ranks(const PieceCounts& counts, int64_t tokens) {
  TRIREME_CHECK(tokens >= 256 && tokens < INT32_MAX, "{} tokens", tokens);
  return Trainer(counts, tokens).run();
}

}  // namespace trireme::data
