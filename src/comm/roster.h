// Who runs where: the processes of all ranks, as they introduced themselves, so that a rank that is late can be told
// from one that is stopped or dead. Of other machines nothing is known but the name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/process_state.h"

namespace trireme::comm {

/// What a rank tells of itself, as bytes.
struct Introduction {
  ProcessId process;
  uint64_t machine = 0;
  char host[96] = {};
};
Introduction introduce_this_process();

class Roster {
 public:
  explicit Roster(int64_t rank) : rank_(rank), machine_(this_machine()) {}

  /// The next rank, from 0 on.
  void add(const Introduction& rank);

  const std::string& host(int64_t rank) const { return hosts_[static_cast<size_t>(rank)]; }
  bool on_this_machine(int64_t rank) const;
  bool on_one_machine() const;
  /// Unknown of a rank that has not introduced itself yet.
  ProcessState state_of_rank(int64_t rank) const;
  /// `rank 1 (pid 4242 on host)`
  std::string whereabouts(int64_t rank) const;
  /// The first other rank whose process is known to be dead; -1: none.
  int64_t first_dead() const;
  /// `rank 1 (pid 4242 on host): it is stopped; rank 2 ...: it is alive, but late`; `nobody` of no ranks.
  std::string late_in_words(const std::vector<int64_t>& ranks, std::string_view nobody) const;

 private:
  int64_t rank_;
  uint64_t machine_;
  std::vector<std::string> hosts_;
  std::vector<uint64_t> machines_;
  std::vector<ProcessId> processes_;
};

}  // namespace trireme::comm
