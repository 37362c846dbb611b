// What saving and loading need from the ranks of a run: a barrier, and short strings from all to all.
//
// The caller gives the implementation (over its communicator, or over threads in tests), so this library knows no
// transport. Contract: every rank makes the same calls in the same order. A call that cannot complete, because a peer
// died or its deadline passed, throws; a save that is interrupted so leaves only a temporary folder, which the next
// save removes.
#pragma once

#include <string>
#include <vector>

namespace trireme::checkpoint {

class Coordination {
 public:
  virtual ~Coordination() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void barrier() = 0;
  /// The strings of all ranks, in rank order; any length, also empty.
  virtual std::vector<std::string> all_gather_strings(const std::string& mine) = 0;
};

/// One rank by itself.
class Alone final : public Coordination {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void barrier() override {}
  std::vector<std::string> all_gather_strings(const std::string& mine) override { return {mine}; }
};

}  // namespace trireme::checkpoint
