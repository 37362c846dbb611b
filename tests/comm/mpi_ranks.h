// Ranks as processes that mpirun has started, for the same test bodies as ranks.h has for threads: a test binary runs
// whole in every process, each test on the first ranks of the world while the others wait for its end.
// TRIREME_TEST_MPI=1 asks for it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/launch_environment.h"
#include "comm/mpi/mpi_group.h"

namespace trireme::comm::testing {

inline bool under_mpi() {
  const char* asked = std::getenv("TRIREME_TEST_MPI");
  return asked != nullptr && std::string(asked) == "1";
}

/// The group of all processes; MPI ends with the tests.
inline const std::shared_ptr<Group>& mpi_world_group() {
  static std::shared_ptr<Group> group;
  if (group == nullptr) {
    class End : public ::testing::Environment {
     public:
      void TearDown() override { group.reset(); }
    };
    ::testing::AddGlobalTestEnvironment(new End);
    const LaunchEnvironment environment = detect_environment();
    GroupOptions options;
    options.members.resize(static_cast<size_t>(environment.world_size));
    std::iota(options.members.begin(), options.members.end(), 0);
    options.rank = environment.rank;
    options.timeout = std::chrono::seconds(60);
    group = std::make_shared<MpiGroup>(
        MpiWorld::open(environment.rank, environment.world_size, std::chrono::seconds(60)), options);
  }
  return group;
}

/// Runs `body` on the first `ranks` processes as axis `data`; none may throw. More than there are: the test is skipped.
inline void run_processes(int64_t ranks, const std::function<void(const std::shared_ptr<Group>&)>& body) {
  const std::shared_ptr<Group>& world = mpi_world_group();
  if (ranks > world->size()) {
    GTEST_SKIP() << "it needs " << ranks << " ranks";
  }
  if (world->rank() < ranks) {
    try {
      GroupOptions options;
      options.axis = "data";
      options.members.resize(static_cast<size_t>(ranks));
      std::iota(options.members.begin(), options.members.end(), 0);
      options.rank = world->rank();
      options.timeout = world->timeout();
      body(world->subgroup(options));
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << world->rank() << ": " << error.what();
      world->abort(error.what());
      return;
    }
  }
  Call meeting;
  meeting.kind = Kind::barrier;
  world->run(meeting);
}

}  // namespace trireme::comm::testing
