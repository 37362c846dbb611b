// Bytes of every rank of a pipeline by what they are for, and whether they fit.
//
// Activations: what operations keep (operations.h) x the passes in flight of the schedule's table; for interleaving the
// mean of a rank's chunks. States: weights in the compute type, gradients, fp32 master weights and Adam's two moments,
// divided by the ZeRO level (Rajbhandari et al., arXiv:1910.02054). Overheads that no formula gives (libraries,
// communicators, fragments of the allocator) are lines of their own with the figure that is taken.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/job.h"

namespace trireme::plan {

struct MemoryItem {
  std::string_view purpose;
  double bytes = 0;
  std::string how;  ///< the arithmetic in words
};

struct RankMemory {
  int64_t pipeline_rank = 0;
  std::vector<MemoryItem> items;
  double bytes = 0;
};

/// An estimate below 80 % of the memory has not run out in 454 measured runs (Fujii et al., arXiv:2411.06465).
enum class Verdict { fits, tight, does_not_fit };
inline constexpr double kFits = 0.80, kTight = 0.95;
std::string_view name_of(Verdict verdict);

struct MemoryPlan {
  std::vector<RankMemory> ranks;  ///< one a pipeline rank
  size_t fullest = 0;             ///< index of the rank with the most bytes
  double capacity = 0;            ///< bytes of an accelerator
  Verdict verdict = Verdict::fits;
  std::string_view breaks;  ///< the largest purpose of the fullest rank

  const RankMemory& most() const { return ranks[fullest]; }
};

/// `layout` is sound for the job.
MemoryPlan memory_plan(const Job& job, const Layout& layout);
/// Bytes of the fullest rank alone, and the verdict on them.
double most_bytes(const Job& job, const Layout& layout);
Verdict verdict_on(double bytes, const Job& job);

/// Bytes a pipeline rank keeps for backward, as Korthikanti counts: blocks and the embedding's mask alone.
double activation_bytes(const Job& job, const Layout& layout, int64_t pipeline_rank);

/// Bytes of weights, gradients and optimizer state of `parameters` elements on one of `ranks` data ranks, by ZeRO
/// level: 2 + 2 + 12 bytes an element (arXiv:1910.02054, figure 1).
double zero_state_bytes(double parameters, double ranks, Shard level);

/// A change of the layout after which it fits, or nearly, and what it costs.
struct Remedy {
  std::string change;
  Layout layout;
  double bytes = 0;
  double seconds = 0;  ///< a step
  Verdict verdict = Verdict::fits;
};
/// The nearest layouts that fit or are tight: one change, or two where one is not enough; fastest first, at most
/// `limit`.
std::vector<Remedy> remedies(const Job& job, const Layout& layout, size_t limit = 3);

}  // namespace trireme::plan
