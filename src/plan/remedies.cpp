// What to change so that a layout fits.
#include <fmt/format.h>

#include <algorithm>

#include "plan/memory.h"
#include "plan/step_time.h"

namespace trireme::plan {
namespace {

/// Layouts one change away, with what the change is called.
std::vector<std::pair<std::string, Layout>> changes(const Job& job, const Layout& from) {
  std::vector<std::pair<std::string, Layout>> result;
  const auto offer = [&](std::string change, Layout layout) { result.emplace_back(std::move(change), layout); };
  Layout next = from;
  if (from.recompute == Recompute::none) {
    next.recompute = Recompute::selective;
    offer("recompute selective", next);
  }
  if (from.recompute != Recompute::full) {
    next.recompute = Recompute::full;
    offer("recompute full", next);
  }
  next = from;
  if (from.micro_batch % 2 == 0) {
    next.micro_batch = from.micro_batch / 2;
    offer(fmt::format("micro-batch {}", next.micro_batch), next);
  }
  next = from;
  if (from.micro_batch > 2) {
    next.micro_batch = 1;
    offer("micro-batch 1", next);
  }
  next = from;
  if (from.data * from.context > 1) {
    for (const Shard shard : {Shard::optimizer, Shard::gradients, Shard::parameters}) {
      if (shard <= from.shard) continue;
      next.shard = shard;
      offer(fmt::format("shard {}", name_of(shard)), next);
    }
  }
  next = from;
  if (from.replicas > 1) {
    next.replicas = 1;
    offer(fmt::format("shard {} among {}", name_of(next.shard), shard_ranks(next)), next);
  }
  next = from;
  if (from.tensor > 1 && !from.sequence_parallel) {
    next.sequence_parallel = true;
    offer("sequence parallelism", next);
  }
  if (from.data % 2 == 0) {
    const auto axis = [&](std::string_view name, int64_t Layout::*member) {
      Layout split = from;
      split.data /= 2;
      split.*member *= 2;
      if (member == &Layout::tensor) split.sequence_parallel = true;
      offer(fmt::format("{} {}", name, split.*member), split);
    };
    axis("tensor", &Layout::tensor);
    axis("pipeline", &Layout::pipeline);
    axis("context", &Layout::context);
  }
  if (job.shape.has_experts() && from.expert < job.shape.experts.experts) {
    Layout split = from;
    split.expert *= 2;
    offer(fmt::format("expert {}", split.expert), split);
  }
  return result;
}

}  // namespace

std::vector<Remedy> remedies(const Job& job, const Layout& layout, size_t limit) {
  std::vector<Remedy> found;
  const auto consider = [&](const std::string& change, const Layout& next) {
    if (!layout_faults(job, next).empty()) return;
    const double bytes = most_bytes(job, next);
    const Verdict verdict = verdict_on(bytes, job);
    if (verdict == Verdict::does_not_fit) return;
    const auto same = [&](const Remedy& remedy) { return remedy.layout == next; };
    if (std::ranges::any_of(found, same)) return;
    found.push_back({change, next, bytes, step_time(job, next).seconds, verdict});
  };
  const auto first = changes(job, layout);
  for (const auto& [change, next] : first) consider(change, next);
  if (found.empty()) {
    for (const auto& [change, next] : first) {
      for (const auto& [second, after] : changes(job, next)) consider(change + ", " + second, after);
    }
  }
  std::ranges::sort(found, {}, &Remedy::seconds);
  if (found.size() > limit) found.resize(limit);
  return found;
}

}  // namespace trireme::plan
