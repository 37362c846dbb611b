// ATen's own operators, and the nodes of autograd, as events of a profile (base/profile.h): what a model computes
// without an operation of ours, and what an operation is made of.
#pragma once

#include <cstdint>

namespace trireme::observe {

/// While it lives, every ATen operator that any thread of the process calls is an event of the recording. Products of
/// matrices have their FLOPs, as torch::profiler counts them. Nothing is computed otherwise for it.
class AtenEvents {
 public:
  AtenEvents();
  ~AtenEvents();
  AtenEvents(const AtenEvents&) = delete;
  AtenEvents& operator=(const AtenEvents&) = delete;

 private:
  uint64_t handle_;
};

}  // namespace trireme::observe
