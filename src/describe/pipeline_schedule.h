// Pipeline schedules as tables, and the simulator that times a table before anything runs it.
//
// A model is cut into ranks x chunks stages, stage = chunk * ranks + rank. A table lists for each rank what it does, in
// order. Sources: GPipe: Huang et al., arXiv:1811.06965; 1F1B and interleaved 1F1B: Narayanan et al., arXiv:2104.04473,
// section 2.2.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::describe {

enum class PipelineSchedule { gpipe, one_f_one_b, interleaved };
std::string_view name_of(PipelineSchedule schedule);

/// A forward or backward pass of one micro-batch through one chunk of a rank.
struct PipelineAction {
  bool forward = true;
  int32_t micro_batch = 0;
  int32_t chunk = 0;
  bool operator==(const PipelineAction&) const = default;
};

struct PipelineTable {
  int64_t ranks = 1;
  int64_t chunks = 1;  ///< stages that each rank holds
  int64_t micro_batches = 1;
  std::vector<std::vector<PipelineAction>> actions;  ///< [ranks]
};

/// Throws InputError for numbers below 1, chunks > 1 with another schedule than interleaved, and micro-batches that
/// interleaving cannot take in groups of `ranks`.
PipelineTable make_pipeline_table(PipelineSchedule schedule, int64_t ranks, int64_t chunks, int64_t micro_batches);

/// The largest number of forward passes of a chunk whose backward has not run: what activations are kept for. [ranks]
std::vector<int64_t> most_in_flight(const PipelineTable& table);

/// The same without a table, for rank 0, which keeps the most.
int64_t most_in_flight(PipelineSchedule schedule, int64_t ranks, int64_t chunks, int64_t micro_batches, int64_t rank);

struct PipelineTimes {
  std::vector<double> forward;   ///< seconds of one micro-batch, [ranks * chunks] by stage
  std::vector<double> backward;  ///< likewise
  double transfer = 0;           ///< seconds from one stage to the next
};

struct PipelineResult {
  double seconds = 0;                     ///< from the first forward to the last backward
  std::vector<double> busy;               ///< seconds that a rank computes, [ranks]
  double idle_share = 0;                  ///< 1 - mean(busy) / seconds
  std::vector<std::vector<double>> ends;  ///< of each action, as the table has them; where that was asked for
};

/// Plays the table: an action starts when its rank is free and its input has arrived. Throws InternalError for a table
/// that waits for itself.
PipelineResult simulate(const PipelineTable& table, const PipelineTimes& times, bool with_ends = false);

/// Never above what simulate() finds for any table over these stages: a rank has to wait for the first micro-batch, do
/// all its work, and the ranks before it have to finish after it.
double least_seconds(const PipelineTimes& times, int64_t ranks, int64_t micro_batches);

}  // namespace trireme::describe
