// A group built anew: survivors of a failure go on without the dead, and newcomers join.
//
// A failure ends a group for good: its arena is poisoned, and every call on it fails. The processes that want to go on
// drop it and call rebuild() with the number of the next generation, as do newcomers. Whoever is first opens a door (a
// Unix socket with an abstract address made from the meeting's name and the generation), the others come to it; if that
// process dies before it has handed out the new arena, its door goes with it and another opens one. When `expected`
// processes have come, or none has for `settle`, those who are there are the group, ranked by their ids. The new arena
// is a memory of its own; that of the old group goes when its last user in any process has dropped it.
//
// Who comes later than that finds no door, and may open one of its own. `at_least` keeps two halves of a job from going
// on apart: give more than half of the processes that were there before.
//
// Errors: InputError for an id that two processes give; WorkerError when fewer than `at_least` have come, or the
// deadline is over.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/shm_group.h"

namespace trireme::comm {

struct RebuildOptions {
  /// The same for all processes of the job and nobody else's: Arena::random_address() of its first life.
  std::string meeting;
  int64_t generation = 1;  ///< of the group to be built; each is built once
  int64_t id = 0;          ///< of this process, unique in the job: its first rank, or a number that nobody had before
  int64_t at_least = 1;
  int64_t expected = 0;  ///< 0: not known
  std::chrono::milliseconds settle{2000};
  std::chrono::milliseconds deadline{60'000};  ///< of the whole call

  std::string axis = "world";
  std::chrono::milliseconds timeout{600'000};  ///< of the group's waits
  std::shared_ptr<const GroupSettings> settings;
};

/// Collective of those who come.
std::shared_ptr<ShmGroup> rebuild(const RebuildOptions& options);

}  // namespace trireme::comm
