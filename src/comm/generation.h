// The generation of a buffer that all ranks share: who may write it, and who may read it, without copying it.
//
// Each rank goes through begin_write, end_write, begin_read, end_read, again and again. begin_write waits until all
// ranks have released what was written last; begin_read waits until all ranks have written their part of the next.
// Waits have the group's deadline, and calls under way go on meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/shm_group.h"

namespace trireme::comm {

class Generation {
 public:
  /// Collective in effect, in the order of the group's shared allocations.
  Generation(std::shared_ptr<ShmGroup> group, const std::string& name);
  ~Generation();

  void begin_write();
  void end_write();
  void begin_read();
  void end_read();
  /// Number of the generation that is being written or read; 1 is the first.
  uint64_t number() const { return number_; }

 private:
  struct Counters;
  void await(bool written, uint64_t number, const char* what);

  std::shared_ptr<ShmGroup> group_;
  std::string name_;
  std::unique_ptr<Counters[]> own_;  // at size 1
  Counters* counters_ = nullptr;     // one for each rank
  uint64_t number_ = 0;
};

}  // namespace trireme::comm
