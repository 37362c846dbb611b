#include "observe/throughput_meter.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace trireme::observe {
namespace {

constexpr size_t kRecentSteps = 50;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

ThroughputMeter::ThroughputMeter(ThroughputOptions options) : options_(std::move(options)) {
  if (!options_.now) options_.now = steady_seconds;
}

void ThroughputMeter::begin_step() { begun_ = options_.now(); }

void ThroughputMeter::end_step(int64_t tokens, double data_time_s, double comm_exposed_s) {
  TRIREME_CHECK(begun_ >= 0, "end_step() without begin_step()");
  const double time_s = options_.now() - begun_;
  begun_ = -1;
  recent_.push_back(time_s);
  if (recent_.size() > kRecentSteps) recent_.pop_front();
  ++steps_;
  tokens_ += tokens;
  time_s_ += time_s;
  data_time_s_ += data_time_s;
  comm_exposed_s_ += comm_exposed_s;
}

void ThroughputMeter::report(StepRecord& record) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto steps = static_cast<double>(std::max<int64_t>(steps_, 1));
  record.tokens_per_second = time_s_ > 0 ? static_cast<double>(tokens_) / time_s_ : 0;
  record.mfu = options_.matmul_flops_per_second > 0
                   ? record.tokens_per_second * options_.flops_per_token / options_.matmul_flops_per_second
                   : nan;
  record.step_time_s = time_s_ / steps;
  record.data_time_s = data_time_s_ / steps;
  record.comm_exposed_s = comm_exposed_s_ / steps;
  record.seconds_left = seconds_left(record.step);
  steps_ = tokens_ = 0;
  time_s_ = data_time_s_ = comm_exposed_s_ = 0;
}

double ThroughputMeter::seconds_left(int64_t step) const {
  if (recent_.empty() || options_.total_steps <= 0) return -1;
  std::vector<double> times(recent_.begin(), recent_.end());
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle * static_cast<double>(std::max<int64_t>(options_.total_steps - step, 0));
}

}  // namespace trireme::observe
