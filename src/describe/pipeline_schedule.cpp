#include "describe/pipeline_schedule.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "describe/divisors.h"

namespace trireme::describe {
namespace {

PipelineAction action(bool forward, int64_t micro_batch, int64_t chunk) {
  return {forward, static_cast<int32_t>(micro_batch), static_cast<int32_t>(chunk)};
}

/// The i-th pass of interleaving: groups of `ranks` micro-batches go through all chunks in turn.
PipelineAction interleaved_pass(bool forward, int64_t i, int64_t ranks, int64_t chunks) {
  const int64_t group = i / (ranks * chunks), inside = i % (ranks * chunks);
  const int64_t chunk = inside / ranks;
  return action(forward, group * ranks + inside % ranks, forward ? chunk : chunks - 1 - chunk);
}

int64_t warm_up(PipelineSchedule schedule, int64_t ranks, int64_t chunks, int64_t micro_batches, int64_t rank) {
  const int64_t passes = micro_batches * chunks;
  if (schedule == PipelineSchedule::gpipe) return passes;
  if (schedule == PipelineSchedule::one_f_one_b) return std::min(passes, ranks - rank - 1);
  return std::min(passes, 2 * (ranks - rank - 1) + (chunks - 1) * ranks);
}

void check(PipelineSchedule schedule, int64_t ranks, int64_t chunks, int64_t micro_batches) {
  if (ranks < 1 || chunks < 1 || micro_batches < 1)
    throw_input("a pipeline of {} ranks x {} chunks with {} micro-batches: each is at least 1", ranks, chunks,
                micro_batches);
  if (chunks > 1 && schedule != PipelineSchedule::interleaved)
    throw_input("{} chunks a rank need the interleaved schedule; {} has 1", chunks, name_of(schedule));
  if (schedule == PipelineSchedule::interleaved && micro_batches % ranks != 0)
    throw_input("interleaving takes micro-batches in groups of the {} pipeline ranks, and {} is not a multiple; {} is",
                ranks, micro_batches, either(nearest_multiples(ranks, micro_batches)));
}

}  // namespace

std::string_view name_of(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return "gpipe";
    case PipelineSchedule::one_f_one_b:
      return "1f1b";
    case PipelineSchedule::interleaved:
      return "interleaved";
  }
  return "";
}

PipelineTable make_pipeline_table(PipelineSchedule schedule, int64_t ranks, int64_t chunks, int64_t micro_batches) {
  check(schedule, ranks, chunks, micro_batches);
  PipelineTable table{ranks, chunks, micro_batches, {}};
  const int64_t passes = micro_batches * chunks;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t warm = warm_up(schedule, ranks, chunks, micro_batches, rank);
    std::vector<PipelineAction> row;
    row.reserve(static_cast<size_t>(2 * passes));
    // With one chunk, groups of `ranks` micro-batches in turn are plain counting.
    for (int64_t i = 0; i < warm; ++i) row.push_back(interleaved_pass(true, i, ranks, chunks));
    for (int64_t i = warm; i < passes; ++i) {
      row.push_back(interleaved_pass(true, i, ranks, chunks));
      row.push_back(interleaved_pass(false, i - warm, ranks, chunks));
    }
    for (int64_t i = passes - warm; i < passes; ++i) row.push_back(interleaved_pass(false, i, ranks, chunks));
    table.actions.push_back(std::move(row));
  }
  return table;
}

std::vector<int64_t> most_in_flight(const PipelineTable& table) {
  std::vector<int64_t> most;
  for (const auto& row : table.actions) {
    int64_t now = 0, peak = 0;
    for (const PipelineAction& pass : row) {
      now += pass.forward ? 1 : -1;
      peak = std::max(peak, now);
    }
    most.push_back(peak);
  }
  return most;
}

int64_t most_in_flight(PipelineSchedule schedule, int64_t ranks, int64_t chunks, int64_t micro_batches, int64_t rank) {
  const int64_t passes = micro_batches * chunks;
  return std::min(passes, warm_up(schedule, ranks, chunks, micro_batches, rank) + 1);
}

PipelineResult simulate(const PipelineTable& table, const PipelineTimes& times, bool with_ends) {
  const int64_t ranks = table.ranks, stages = ranks * table.chunks, batches = table.micro_batches;
  constexpr double kNotYet = -1;
  // When a pass ended, [stages, micro-batches].
  std::vector<double> forward(static_cast<size_t>(stages * batches), kNotYet), backward = forward;
  const auto at = [batches](std::vector<double>& ends, int64_t stage, int64_t batch) -> double& {
    return ends[static_cast<size_t>(stage * batches + batch)];
  };
  std::vector<size_t> next(static_cast<size_t>(ranks), 0);
  std::vector<double> clock(static_cast<size_t>(ranks), 0), busy = clock;
  size_t left = 0;
  for (const auto& row : table.actions) left += row.size();
  PipelineResult result;
  if (with_ends) result.ends.resize(static_cast<size_t>(ranks));
  // Turns from the first rank to the last and back: forwards travel one way, backwards the other.
  const auto play = [&](int64_t rank) {
    const auto r = static_cast<size_t>(rank);
    bool moved = false;
    for (const auto& row = table.actions[r]; next[r] < row.size(); ++next[r], --left, moved = true) {
      const PipelineAction& pass = row[next[r]];
      const int64_t stage = pass.chunk * ranks + rank;
      double ready = 0;
      if (pass.forward && stage > 0) ready = at(forward, stage - 1, pass.micro_batch);
      if (!pass.forward)
        ready = stage + 1 == stages ? at(forward, stage, pass.micro_batch) : at(backward, stage + 1, pass.micro_batch);
      if (ready == kNotYet) break;
      const bool arrives = pass.forward ? stage > 0 : stage + 1 < stages;
      if (arrives && ranks > 1) ready += times.transfer;
      const double work = (pass.forward ? times.forward : times.backward)[static_cast<size_t>(stage)];
      clock[r] = std::max(clock[r], ready) + work;
      busy[r] += work;
      if (with_ends) result.ends[r].push_back(clock[r]);
      at(pass.forward ? forward : backward, stage, pass.micro_batch) = clock[r];
    }
    return moved;
  };
  while (left > 0) {
    bool moved = false;
    for (int64_t rank = 0; rank < ranks; ++rank) moved |= play(rank);
    for (int64_t rank = ranks - 1; rank >= 0; --rank) moved |= play(rank);
    TRIREME_CHECK(moved, "the table of {} ranks and {} micro-batches waits for itself", ranks, batches);
  }
  result.seconds = *std::ranges::max_element(clock);
  const double mean = std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(ranks);
  result.idle_share = result.seconds > 0 ? 1 - mean / result.seconds : 0;
  result.busy = std::move(busy);
  return result;
}

double least_seconds(const PipelineTimes& times, int64_t ranks, int64_t micro_batches) {
  const size_t stages = times.forward.size(), count = static_cast<size_t>(ranks);
  double most = 0, before = 0;
  for (size_t rank = 0; rank < count; ++rank) {
    double work = 0;
    for (size_t stage = rank; stage < stages; stage += count) work += times.forward[stage] + times.backward[stage];
    most = std::max(most, work * static_cast<double>(micro_batches) + before);
    before += times.forward[rank] + times.backward[rank] + 2 * times.transfer;
  }
  return most;
}

}  // namespace trireme::describe
