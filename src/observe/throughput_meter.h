// How fast a run is: step times, tokens a second, MFU and the time left.
//
// Only the time between begin_step() and end_step() counts. Evaluations and checkpoints happen between steps, so
// throughput and the time left are those of training alone; the report of an evaluation and of a checkpoint says how
// long each took.
//
// MFU (model FLOPs utilisation) = tokens a second x model FLOPs a token / matmul rate. FLOPs a token follow PaLM,
// appendix B (describe::model_flops_per_token: attention not halved for the causal mask, recomputation not counted);
// the rate is what this machine's workers reached together in matrix products of the compute dtype (matmul_rate.h),
// not a figure of a data sheet.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>

#include "observe/step_record.h"

namespace trireme::observe {

struct ThroughputOptions {
  double flops_per_token = 0;          ///< model FLOPs, forward and backward
  double matmul_flops_per_second = 0;  ///< of all workers together; 0: not measured, and MFU is NaN
  int64_t total_steps = 0;             ///< the last step of the run (train.steps, or train.stop_after)
  /// Seconds of a monotonic clock; tests give their own.
  std::function<double()> now;
};

class ThroughputMeter {
 public:
  explicit ThroughputMeter(ThroughputOptions options);

  void begin_step();
  /// `tokens`: of the global batch. `data_time_s` and `comm_exposed_s`: waiting within this step.
  void end_step(int64_t tokens, double data_time_s, double comm_exposed_s);

  /// Fills in tokens_per_second, mfu, step_time_s, data_time_s and comm_exposed_s as means over the steps since the
  /// last call (tokens a second: all their tokens / all their time), and seconds_left; begins a new interval.
  void report(StepRecord& record);

  /// Median of the last 50 step times x steps that are left after `step`; -1 before the first step. The median, since
  /// the first steps warm up and a machine hiccups; evaluations and checkpoints to come are not in it.
  double seconds_left(int64_t step) const;

 private:
  ThroughputOptions options_;
  double begun_ = -1;
  std::deque<double> recent_;
  int64_t steps_ = 0;
  int64_t tokens_ = 0;
  double time_s_ = 0;
  double data_time_s_ = 0;
  double comm_exposed_s_ = 0;
};

}  // namespace trireme::observe
