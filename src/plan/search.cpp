#include "plan/search.h"

#include <algorithm>

#include "plan/operations.h"
#include "plan/step_time.h"

namespace trireme::plan {
namespace {

std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> result;
  for (int64_t d = 1; d <= std::min(n, most); ++d) {
    if (n % d == 0) result.push_back(d);
  }
  return result;
}

std::vector<int64_t> chosen(const std::optional<int64_t>& given, std::vector<int64_t> all) {
  return given ? std::vector<int64_t>{*given} : std::move(all);
}

std::vector<int64_t> micro_batches_to_try(const Job& job, int64_t data, const std::optional<int64_t>& given) {
  // Updates in backward need all of a step at once.
  if (job.update_in_backward) return chosen(given, {job.global_batch / data});
  std::vector<int64_t> result;
  for (int64_t size = 1; size <= kMostMicroBatch; size *= 2) result.push_back(size);
  return chosen(given, std::move(result));
}

/// Calls `visit` with every legal layout of the space.
template <typename Visit>
void each_layout(const Job& job, const SearchSpace& space, const Visit& visit) {
  const describe::ModelShape& d = job.shape.decoder;
  const int64_t experts = std::max<int64_t>(job.shape.experts.experts, 1);
  std::vector<Recompute> recomputes = {Recompute::none, Recompute::selective, Recompute::full};
  std::vector<Shard> shards = {Shard::none, Shard::optimizer, Shard::gradients, Shard::parameters};
  if (space.recompute) recomputes = {*space.recompute};
  if (space.shard) shards = {*space.shard};
  Layout layout;
  for (const int64_t tensor : chosen(space.tensor, divisors(job.gpus, d.heads))) {
    layout.tensor = tensor;
    const int64_t after_tensor = job.gpus / tensor;
    for (const int64_t context : chosen(space.context, divisors(after_tensor, job.seq_len / 2))) {
      layout.context = context;
      for (const int64_t pipeline : chosen(space.pipeline, divisors(after_tensor / context, d.layers))) {
        layout.pipeline = pipeline;
        layout.data = job.gpus / (tensor * context * pipeline);
        if (layout.data < 1 || job.global_batch % layout.data != 0) continue;
        for (const int64_t chunks :
             chosen(space.virtual_stages, std::vector<int64_t>(kVirtualStages.begin(), kVirtualStages.end()))) {
          layout.virtual_stages = chunks;
          layout.schedule = chunks > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_f_one_b;
          for (const int64_t micro : micro_batches_to_try(job, layout.data, space.micro_batch)) {
            layout.micro_batch = micro;
            for (const int64_t expert : chosen(space.expert, divisors(experts, experts))) {
              layout.expert = expert;
              layout.shard = Shard::none;
              if (!layout_faults(job, layout).empty()) continue;
              for (const Recompute recompute : recomputes) {
                layout.recompute = recompute;
                for (const Shard shard : shards) {
                  layout.shard = shard;
                  if (shard != Shard::none && layout.data * layout.context == 1 && !space.shard) continue;
                  if (shard == Shard::parameters && !layout_faults(job, layout).empty()) continue;
                  visit(layout);
                }
              }
            }
          }
        }
      }
    }
  }
}

/// Selective recomputation that keeps as much as none is none.
bool is_idle(const Job& job, const Layout& layout, const SearchSpace& space) {
  if (layout.recompute != Recompute::selective || space.recompute) return false;
  Layout none = layout;
  none.recompute = Recompute::none;
  const auto block = block_operations(job, layout, false);
  return kept_bytes(job, layout, block) >= kept_bytes(job, none, block);
}

bool before(const Candidate& a, const Candidate& b) {
  return a.seconds != b.seconds ? a.seconds < b.seconds : a.bytes < b.bytes;
}

void keep(std::vector<Candidate>& best, const Candidate& candidate, size_t top) {
  best.insert(std::ranges::upper_bound(best, candidate, before), candidate);
  if (best.size() > top) best.pop_back();
}

std::vector<Candidate> pareto_of(std::vector<Candidate> all) {
  std::ranges::sort(all, before);
  std::vector<Candidate> result;
  for (const Candidate& candidate : all) {
    if (result.empty() || candidate.bytes < result.back().bytes) result.push_back(candidate);
  }
  return result;
}

}  // namespace

SearchSpace trainer_space() {
  SearchSpace space;
  space.tensor = space.context = space.pipeline = space.virtual_stages = space.expert = 1;
  return space;
}

SearchResult search(const Job& job, const SearchSpace& space, size_t top, bool prune) {
  StepOptions bound;
  bound.simulate = false;
  std::vector<Candidate> open;
  SearchResult result;
  each_layout(job, space, [&](const Layout& layout) {
    if (is_idle(job, layout, space)) return;
    ++result.legal;
    open.push_back({layout, step_time(job, layout, bound).seconds, 0, Verdict::fits, {}});
  });
  std::ranges::stable_sort(open, {}, &Candidate::seconds);

  std::vector<Candidate> simulated;
  for (Candidate candidate : open) {
    const bool full = result.best.size() == top;
    if (prune && full && candidate.seconds > result.best.back().seconds) break;
    candidate.bytes = most_bytes(job, candidate.layout);
    candidate.verdict = verdict_on(candidate.bytes, job);
    if (candidate.verdict == Verdict::does_not_fit) {
      ++result.too_large;
      if (!result.smallest || candidate.bytes < result.smallest->bytes) result.smallest = candidate;
      continue;
    }
    const StepTime time = step_time(job, candidate.layout);
    candidate.seconds = time.seconds;
    candidate.terms = time.terms;
    ++result.simulated;
    simulated.push_back(candidate);
    keep(result.best, candidate, top);
  }
  if (!result.best.empty()) result.smallest.reset();
  if (result.smallest) result.smallest->seconds = step_time(job, result.smallest->layout).seconds;
  result.pareto = pareto_of(std::move(simulated));
  return result;
}

int64_t faster_than(const Job& job, const SearchSpace& space, const Layout& layout) {
  const double seconds = step_time(job, layout).seconds;
  StepOptions bound;
  bound.simulate = false;
  int64_t count = 0;
  each_layout(job, space, [&](const Layout& other) {
    if (is_idle(job, other, space) || step_time(job, other, bound).seconds >= seconds) return;
    if (verdict_on(most_bytes(job, other), job) == Verdict::does_not_fit) return;
    count += step_time(job, other).seconds < seconds ? 1 : 0;
  });
  return count;
}

}  // namespace trireme::plan
