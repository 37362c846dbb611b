#include "comm/roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/host.h"

namespace trireme::comm {

Introduction introduce_this_process() {
  Introduction mine;
  mine.process = this_process();
  mine.machine = this_machine();
  std::strncpy(mine.host, host_name().c_str(), sizeof mine.host - 1);
  return mine;
}

void Roster::add(const Introduction& rank) {
  hosts_.emplace_back(rank.host);
  machines_.push_back(rank.machine);
  processes_.push_back(rank.process);
}

bool Roster::on_this_machine(int64_t rank) const {
  const auto index = static_cast<size_t>(rank);
  return index < machines_.size() && machines_[index] == machine_;
}

bool Roster::on_one_machine() const {
  return std::all_of(machines_.begin(), machines_.end(), [&](uint64_t machine) { return machine == machines_[0]; });
}

ProcessState Roster::state_of_rank(int64_t rank) const {
  return on_this_machine(rank) ? state_of(processes_[static_cast<size_t>(rank)]) : ProcessState::unknown;
}

std::string Roster::whereabouts(int64_t rank) const {
  return fmt::format("rank {} (pid {} on {})", rank, processes_[static_cast<size_t>(rank)].pid, host(rank));
}

int64_t Roster::first_dead() const {
  for (int64_t r = 0; r < static_cast<int64_t>(machines_.size()); ++r)
    if (r != rank_ && state_of_rank(r) == ProcessState::dead) return r;
  return -1;
}

std::string Roster::late_in_words(const std::vector<int64_t>& ranks, std::string_view nobody) const {
  std::string who;
  for (const int64_t rank : ranks) {
    if (!who.empty()) who += "; ";
    who += whereabouts(rank);
    switch (state_of_rank(rank)) {
      case ProcessState::stopped:
        who += ": it is stopped (by a signal or a debugger)";
        break;
      case ProcessState::alive:
        who += ": it is alive, but late";
        break;
      case ProcessState::dead:
        who += ": it died";
        break;
      case ProcessState::unknown:
        who += ": on another machine, it has not said that it waits";
        break;
    }
  }
  return who.empty() ? std::string(nobody) : who;
}

}  // namespace trireme::comm
