// The best layouts of a job: every legal one is looked at, those that cannot win are left out by a bound that no
// simulation goes below.
//
// The space: tensor, context, pipeline and expert sizes that divide; virtual stages of kVirtualStages; micro-batches
// that are powers of two up to kMostMicroBatch; recompute none, selective where that keeps less than none, full; shard
// none, optimizer, gradients, parameters; 1F1B, and interleaving for several virtual stages. Sequence parallelism is on
// wherever tensor > 1.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "plan/memory.h"
#include "plan/step_time.h"

namespace trireme::plan {

inline constexpr std::array<int64_t, 8> kVirtualStages = {1, 2, 3, 4, 5, 6, 8, 16};
inline constexpr int64_t kMostMicroBatch = 16;

/// What is given is kept; the rest is searched.
struct SearchSpace {
  std::optional<int64_t> tensor, context, pipeline, virtual_stages, expert, micro_batch;
  std::optional<Recompute> recompute;
  std::optional<Shard> shard;
};
/// What `trireme train` runs today: data ranks that keep the whole state or divide it.
SearchSpace trainer_space();

struct Candidate {
  Layout layout;
  double seconds = 0;  ///< a step
  double bytes = 0;    ///< of the fullest rank
  Verdict verdict = Verdict::fits;
  Terms terms{};  ///< seconds, as in StepTime
};

struct SearchResult {
  std::vector<Candidate> best;    ///< that fit or are tight, fastest first
  std::vector<Candidate> pareto;  ///< among `best` and all that were simulated: no other is faster and smaller; by time
  std::optional<Candidate> smallest;  ///< where nothing fits: the legal layout with the fewest bytes
  int64_t legal = 0;                  ///< layouts that can run
  int64_t too_large = 0;              ///< of those that were looked at, the ones that do not fit
  int64_t simulated = 0;
};

/// The `top` fastest layouts. `prune` = false simulates every one that fits: slow, for tests.
SearchResult search(const Job& job, const SearchSpace& space, size_t top, bool prune = true);

/// How many layouts of the space fit and are faster than `layout`, which is legal.
int64_t faster_than(const Job& job, const SearchSpace& space, const Layout& layout);

}  // namespace trireme::plan
