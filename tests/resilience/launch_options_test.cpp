// What the launcher's own options may be, and who is a worker.
#include "cli/launch_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace trireme::cli {
namespace {

using ::testing::HasSubstr;

LaunchOptions nodes(int64_t count, int64_t rank, const std::string& meeting, int64_t workers = 1) {
  LaunchOptions options;
  options.nodes = count;
  options.node_rank = rank;
  options.rendezvous = meeting;
  options.workers = workers;
  return options;
}

TEST(CheckLaunch, RefusesWithAMessage) {
  const struct {
    const char* name;
    LaunchOptions options;
    std::vector<const char*> says;
  } rows[] = {
      {"no_workers", nodes(1, 0, "", 0), {"--workers 0: at least 1"}},
      {"negative_workers", nodes(1, 0, "", -2), {"--workers -2"}},
      {"too_many_workers", nodes(1, 0, "", 100000), {"at most 256"}},
      {"no_nodes", nodes(0, 0, ""), {"--nodes 0"}},
      {"rank_too_large", nodes(2, 2, "a:1"), {"--node-rank 2: with --nodes 2 it is 0 to 1"}},
      {"no_meeting", nodes(2, 0, ""), {"needs --rendezvous"}},
      {"no_port", nodes(2, 0, "node0"), {"HOST:PORT"}},
      {"empty_port", nodes(2, 0, "node0:"), {"HOST:PORT"}},
      {"no_host", nodes(2, 0, ":29500"), {"HOST:PORT"}},
      {"port_0", nodes(2, 0, "node0:0"), {"1 to 65535"}},
      {"port_too_large", nodes(2, 0, "node0:65536"), {"1 to 65535"}},
      {"port_not_a_number", nodes(2, 0, "node0:29x"), {"HOST:PORT"}},
      {"ipv6_without_brackets", nodes(2, 0, "fe80::1:29500"), {"HOST:PORT"}},
      {"all_at_once", nodes(2, 5, "node0", 0), {"--workers 0", "--node-rank 5", "--rendezvous node0"}},
  };
  for (const auto& row : rows) {
    try {
      check_launch(row.options);
      ADD_FAILURE() << row.name << ": expected an error";
    } catch (const InputError& error) {
      for (const char* text : row.says) EXPECT_THAT(error.what(), HasSubstr(text)) << row.name;
    }
  }
}

TEST(CheckLaunch, ReadsTheMeetingPoint) {
  EXPECT_EQ(check_launch(nodes(1, 0, "")).port, 0);
  EXPECT_EQ(check_launch(nodes(2, 1, "node0:29500")).host, "node0");
  EXPECT_EQ(check_launch(nodes(2, 1, "node0:29500")).port, 29500);
  EXPECT_EQ(check_launch(nodes(2, 1, "[fe80::1]:65535")).host, "fe80::1");
}

TEST(IsWorker, FollowsTheLauncher) {
  const struct {
    const char* name;
    const char* launcher;
    int64_t world;
    const char* slurm_step;
    int64_t workers;
    int expected;  ///< 1 worker, 0 launcher, -1 refused
  } rows[] = {
      {"alone", "none", 1, nullptr, 0, 0},
      {"alone_two", "none", 1, nullptr, 2, 0},
      {"torchrun", "torchrun", 4, nullptr, 0, 1},
      {"torchrun_agrees", "torchrun", 4, nullptr, 4, 1},
      {"torchrun_differs", "torchrun", 4, nullptr, 2, -1},
      {"torchrun_one_differs", "torchrun", 1, nullptr, 2, -1},
      {"srun", "slurm", 4, "0", 0, 1},
      {"srun_differs", "slurm", 4, "0", 2, -1},
      {"shell_in_srun", "slurm", 1, "0", 2, 0},
      {"batch_script", "slurm", 4, nullptr, 2, 0},
      {"batch_step", "slurm", 4, "4294967291", 0, 0},
      {"mpirun", "openmpi", 2, nullptr, 0, 1},
      {"mpirun_one", "mpich", 1, nullptr, 2, 0},
  };
  for (const auto& row : rows) {
    comm::LaunchEnvironment environment;
    environment.launcher = row.launcher;
    environment.world_size = row.world;
    const auto getenv = [&](const char* name) {
      return std::string_view(name) == "SLURM_STEP_ID" ? row.slurm_step : nullptr;
    };
    if (row.expected < 0) {
      EXPECT_THROW(is_worker(environment, row.workers, getenv), InputError) << row.name;
    } else {
      EXPECT_EQ(is_worker(environment, row.workers, getenv), row.expected == 1) << row.name;
    }
  }
}

}  // namespace
}  // namespace trireme::cli
