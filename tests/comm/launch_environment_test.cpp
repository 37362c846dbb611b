// Each launcher's variables, and what is wrong in them: all of it at once.
#include "comm/launch_environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/error.h"

namespace trireme::comm {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment detect(const Variables& variables) {
  return detect_environment([&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

struct Row {
  const char* name;
  Variables variables;
  LaunchEnvironment expected;
};

TEST(LaunchEnvironment, IsReadFromEachLauncher) {
  const std::vector<Row> rows = {
      {"none", {}, {}},
      {"torchrun",
       {{"RANK", "3"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"GROUP_RANK", "1"},
        {"MASTER_ADDR", "a"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"TORCHELASTIC_RESTART_COUNT", "2"},
        {"TORCHELASTIC_RUN_ID", "job"},
        {"SLURM_PROCID", "9"},
        {"SLURM_NTASKS", "10"}},
       {"torchrun", 3, 4, 1, 2, "a", 29500, true, "job/2"}},
      {"own launcher",
       {{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"GROUP_RANK", "0"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "0"}},
       {"torchrun", 0, 2, 0, 2, "127.0.0.1", 0, false, "0/0"}},
      {"srun",
       {{"SLURM_PROCID", "5"},
        {"SLURM_NTASKS", "8"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_NODEID", "1"},
        {"SLURM_NNODES", "2"},
        {"SLURM_JOB_NODELIST", "gpu[07-09],x"},
        {"SLURM_JOB_ID", "7"},
        {"SLURM_STEP_ID", "0"},
        {"MASTER_PORT", "1234"}},
       {"slurm", 5, 8, 1, 4, "gpu07", 1234, false, "7.0"}},
      {"open mpi",
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"MASTER_PORT", "5000"}},
       {"openmpi", 1, 2, 1, 2, "127.0.0.1", 5000, false, "0"}},
      {"mpich",
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_PORT", "5000"}},
       {"mpich", 1, 2, 1, 2, "127.0.0.1", 5000, false, "0"}},
      // comm.backend = mpi needs no address; whoever does says that it is missing.
      {"mpich on hosts",
       {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}, {"MASTER_PORT", "9"}},
       {"mpich", 3, 4, 1, 2, "", 9, false, "0"}},
      {"mpirun of Open MPI inherits the variables of Slurm's batch script",
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
        {"MASTER_PORT", "5000"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "2"}},
       {"openmpi", 1, 2, 0, 1, "", 5000, false, "0"}},
      {"and so does that of MPICH",
       {{"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"MPI_LOCALRANKID", "1"},
        {"MPI_LOCALNRANKS", "2"},
        {"MASTER_PORT", "5000"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "2"}},
       {"mpich", 1, 2, 1, 2, "127.0.0.1", 5000, false, "0"}},
      {"srun with an MPI library sets PMI_RANK too",
       {{"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_JOB_NODELIST", "a"},
        {"MASTER_PORT", "5000"}},
       {"slurm", 1, 2, 1, 2, "a", 5000, false, "0.0"}},
      {"one of one needs no address",
       {{"RANK", "0"}, {"WORLD_SIZE", "1"}},
       {"torchrun", 0, 1, 0, 1, "127.0.0.1", 0, false, "0/0"}},
  };
  for (const Row& row : rows) {
    const LaunchEnvironment e = detect(row.variables);
    const LaunchEnvironment& x = row.expected;
    EXPECT_EQ(e.launcher, x.launcher) << row.name;
    EXPECT_EQ(e.rank, x.rank) << row.name;
    EXPECT_EQ(e.world_size, x.world_size) << row.name;
    EXPECT_EQ(e.local_rank, x.local_rank) << row.name;
    EXPECT_EQ(e.local_world_size, x.local_world_size) << row.name;
    EXPECT_EQ(e.master_addr, x.master_addr) << row.name;
    EXPECT_EQ(e.master_port, x.master_port) << row.name;
    EXPECT_EQ(e.agent_store, x.agent_store) << row.name;
    EXPECT_EQ(e.run_id, x.run_id) << row.name;
  }
}

TEST(LaunchEnvironment, ListsEveryFault) {
  struct Bad {
    const char* name;
    Variables variables;
    std::vector<std::string> words;
  };
  const std::vector<Bad> rows = {
      {"too large a rank",
       {{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
       {"rank 4 of a world of 4"}},
      {"no address", {{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {"MASTER_ADDR is not set", "MASTER_PORT is not set"}},
      {"no rank", {{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, {"RANK is not set"}},
      {"no numbers", {{"RANK", "x"}, {"WORLD_SIZE", "-1"}}, {"RANK = x", "WORLD_SIZE = -1"}},
      {"agent without a port",
       {{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "a"},
        {"MASTER_PORT", "0"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
       {"MASTER_PORT = 0"}},
      {"port", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}, {"70000"}},
  };
  for (const Bad& row : rows) {
    try {
      detect(row.variables);
      ADD_FAILURE() << row.name << " was accepted";
    } catch (const InputError& error) {
      for (const std::string& word : row.words) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << row.name << ": " << error.what();
      }
    }
  }
}

TEST(LaunchEnvironment, FirstHostOfASlurmNodeList) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"node1", "node1"},          {"a,b", "a"},      {"gpu[07-12,15],cpu1", "gpu07"}, {"n[3]", "n3"},
      {"r[1-2]n[04,08]", "r1n04"}, {"x[5,1]y", "x5y"}};
  for (const auto& [list, host] : rows) EXPECT_EQ(first_host(list), host) << list;
  for (const char* bad : {"", "a[", "a[]", ",b"}) EXPECT_THROW(first_host(bad), InputError) << bad;
}

}  // namespace
}  // namespace trireme::comm
