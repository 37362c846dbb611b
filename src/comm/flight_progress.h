// Private to comm: from the records of all ranks to how far each group is, and who holds it up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/flight_log.h"

namespace trireme::comm {

struct RankProgress {
  int64_t rank = 0;     ///< of the world
  uint64_t posted = 0;  ///< number of the last collective that it has posted; 0: none
  uint64_t done = 0;    ///< of the last one that is complete for it
  std::string call;     ///< what the last posted one is
};

struct GroupProgress {
  std::string axis;
  std::vector<int64_t> members;
  int64_t instance = 0;
  int64_t generation = 0;
  std::vector<RankProgress> ranks;
  std::vector<int64_t> behind;          ///< ranks that have not posted what another has
  std::vector<int64_t> without_record;  ///< members whose recorder was not found
  std::vector<std::string> differs;     ///< calls of the same number that are not the same
  std::vector<std::string> messages;    ///< sends and receives that are not complete
};

std::vector<GroupProgress> group_progress(const std::vector<FlightLog>& logs);
std::string to_text(const GroupProgress& group);
/// Who is behind at which operation, or what differs, on one line; empty when neither.
std::string summary(const GroupProgress& group);

}  // namespace trireme::comm
