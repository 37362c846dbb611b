// The profile of some steps of a run (profile.steps): when it is recorded, and what becomes of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "observe/aten_events.h"
#include "train/session.h"

namespace trireme::train {

class Profiler {
 public:
  /// `matmul_rate`: of this rank, FLOPs a second; 0: not measured. Does nothing when profile.steps is 0. `say` hears
  /// the table, on the first rank, and what is missing of it.
  Profiler(const Session& session, double matmul_rate, std::function<void(const std::string&)> say);
  ~Profiler();

  void begin_step();
  /// `tokens`: of the global batch. After the last step of the profile it is collective: each rank leaves
  /// RUN/profile/profile-rankN.json and trace-rankN.json, in place of an older profile.
  void end_step(int64_t tokens);
  /// Collective, when the run ends: what a stop has cut short is told of the steps that there were.
  void finish();

 private:
  void report();

  const Session& session_;
  double matmul_rate_;
  std::function<void(const std::string&)> say_;
  int64_t begun_ = 0, recorded_ = 0;           // steps of this call, and those of them that are in the profile
  int64_t tokens_ = 0;                         // of this rank, in those
  std::unique_ptr<observe::AtenEvents> aten_;  // while it is recorded
};

}  // namespace trireme::train
