// From the events of some steps to where their time went: a table, a JSON file, and a trace for Perfetto.
//
// The time of a row is self time: what lasted within an event and within none of the events inside it. An event of
// ATen's inside an operation of ours counts to that operation; elsewhere it has a row of its own. What is in no row
// (autograd's engine, allocation of tensors, the host code of a step) is `other`, by phase. So the rows of a rank and
// its `other` add up to the time of its steps, to the nanosecond.
//
// Only the thread that steps is counted: what a thread beside it does costs the step nothing but what it waits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/profile.h"

namespace trireme::observe {

struct ProfileRow {
  std::string name;  ///< "linear, weight gradient"; "aten::add_"
  std::string of;    ///< of which weight, without the number of its block: "attention.output"
  profile::Phase phase = profile::Phase::other;
  profile::Shape shape{-1, -1, -1};
  int64_t calls = 0;
  int64_t self_ns = 0;
  double flops = 0, bytes = 0;
};

struct StepProfile {
  // Told by the one who profiles.
  int64_t rank = 0, ranks = 1;
  double model_flops = 0;              ///< of this rank in these steps, each pair that attention sees counted
  double matmul_flops_per_second = 0;  ///< of this rank, measured; 0: not measured

  // Found in the events. All numbers are sums over the steps.
  std::vector<int64_t> steps;    ///< their numbers
  std::vector<int64_t> step_ns;  ///< the time of each
  std::vector<ProfileRow> rows;  ///< longest first
  std::map<profile::Phase, int64_t> other_ns;

  int64_t total_ns() const;
  double flops() const;
};

/// "attention.output" of blocks.3.attention.output.weight: what the blocks of a model have in common.
std::string role_of(std::string_view name);

/// Fills in what is found in the events. Events outside of a step do not count. Throws InternalError for events of a
/// thread that overlap without being nested.
void add_events(StepProfile& profile, const std::vector<profile::Thread>& threads);

/// For a terminal; per step. Rows below a thousandth of the time are put together.
std::string to_text(const StepProfile& profile);

/// One object with everything; `docs/profiling.md` has the keys.
std::string to_json(const StepProfile& profile);

/// The JSON of Chrome's trace events, complete events ("X") with their nesting, one process a rank and one track a
/// thread: the format of torch.profiler's exports, which ui.perfetto.dev opens. Time is the machine's monotonic clock
/// in microseconds, so that the ranks of a machine fit together. Source: "Trace Event Format", Google, 2016.
std::string to_trace(const StepProfile& profile, const std::vector<profile::Thread>& threads);

}  // namespace trireme::observe
