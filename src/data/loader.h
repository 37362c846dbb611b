// The loader: which tokens a data rank trains on at each step.
//
// Packing: the stream of a data set is cut into samples of seq_len + 1 tokens that overlap by one, so that every token
// but the first is a label once an epoch: sample k covers tokens [k S, k S + S], and there are n = (tokens - 1) / S of
// them. A sample may span documents; their end-of-text tokens stand between them.
//
// Order: global position p is sample Permutation(derive(key, p / n), n)(p % n), with the key from (seed, "data order"):
// an order without a table, the same for any number of ranks. A step at position p takes the samples p .. p + G - 1,
// where G = micro_batch_size x accumulation x data_ranks, which may grow with p; data rank r takes the contiguous block
// r of them, cut into micro-batches in order, unless LoaderOptions::place says otherwise. One number, p, is therefore
// the whole state, and any number of ranks can resume from it: each sample is seen exactly once an epoch. A set with
// fewer than G samples works: a step then spans epochs.
//
// A thread prepares one step ahead. A failure there is thrown by the next next_step().
// Thread safety: one caller at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/dataset.h"

namespace trireme::data {

struct LoaderOptions {
  uint64_t seed = 0;
  int64_t seq_len = 0;
  int64_t micro_batch_size = 1;  ///< rows of a batch
  int64_t accumulation = 1;      ///< batches a step
  /// Batches of the step that begins at a position, where they differ; empty: `accumulation`.
  std::function<int64_t(uint64_t)> accumulation_at = {};
  /// (batch, batches) -> which of the step's micro-batches over all ranks this rank's `batch` of `batches` is; empty:
  /// data_rank * batches + batch.
  std::function<int64_t(int64_t, int64_t)> place = {};
  bool mask_document_starts = false;  ///< the first token of a document is no label
  int64_t data_rank = 0;
  int64_t data_ranks = 1;
  /// How long next_step waits for the reading thread.
  std::chrono::milliseconds deadline{300'000};
};

/// What a checkpoint keeps of a loader. A default state starts at the beginning.
struct LoaderState {
  static constexpr int current_version = 1;
  int version = current_version;
  uint64_t position = 0;  ///< samples of the global order that were handed out, over all ranks and epochs
  // What the position refers to, compared on resume; `dataset` is empty in a default state, which is not compared.
  std::string dataset;  ///< Dataset::fingerprint()
  int64_t seq_len = 0;
  uint64_t seed = 0;

  bool operator==(const LoaderState&) const = default;
};

void to_json(nlohmann::json& json, const LoaderState& state);
/// Throws InputError for a missing key or another version.
void from_json(const nlohmann::json& json, LoaderState& state);

class Loader {
 public:
  /// Throws InputError when the set is too short for one sample, when `state` is of another set, seq_len or seed, and
  /// for options that make no sense.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options, LoaderState state = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The micro-batches of this rank for the next step: `accumulation` of them. Rethrows what failed in the reading
  /// thread (then the state does not advance and every further call throws too), and throws InternalError at the
  /// deadline.
  std::vector<Batch> next_step();
  /// Counts only steps that next_step() has returned.
  LoaderState state() const;

  int64_t samples_per_epoch() const;
  int64_t global_batch_size() const;  ///< samples of the next step, over all ranks
  double epoch() const;               ///< position / samples_per_epoch

 private:
  struct Prefetch;  // shared with the reading thread

  LoaderOptions options_;
  LoaderState state_;
  int64_t samples_ = 0;
  std::shared_ptr<Prefetch> prefetch_;
};

}  // namespace trireme::data
