// Failures of real processes: who is killed or stopped in the middle of a collective is named, and nothing is left
// behind. Ranks are this binary, executed again with arguments: never forked, as the trainer's never are.
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "comm/arena.h"
#include "comm/shm_group.h"
#include "processes.h"
#include "ranks.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::expect_nothing_left;
using testing::Rank;

// What a rank does: reduce for ever, and tell why it had to stop.
int run_rank(const std::vector<std::string>& args) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string& address = args[0];
  const int64_t rank = std::stoll(args[1]);
  const int64_t ranks = std::stoll(args[2]);
  const bool in_arena = args[4] == "arena";
  try {
    const auto arena = testing::meet(address, rank, ranks);
    GroupOptions options;
    options.axis = "data";
    options.rank = rank;
    options.timeout = milliseconds(std::stoll(args[3]));
    ShmGroup group(arena, options);
    const int64_t count = 1 << 18;
    std::vector<float> own(count);
    void* data =
        in_arena ? static_cast<void*>(group.shared_alloc("data", ranks * count * 4) + rank * count * 4) : own.data();
    for (int64_t i = 0;; ++i) {
      group.run(testing::make_call(Kind::all_reduce, DType::f32, count, data, data));
      if (i == 3) {
        std::printf("ready\n");
        std::fflush(stdout);
      }
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
    return 3;
  }
}

struct Job {
  std::string address = Arena::random_address();
  std::vector<Rank> ranks;

  Job(int64_t count, int64_t timeout_ms, const char* where) {
    for (int64_t r = 0; r < count; ++r) {
      ranks.emplace_back(std::vector<std::string>{address, std::to_string(r), std::to_string(count),
                                                  std::to_string(timeout_ms), where});
    }
    for (Rank& rank : ranks) EXPECT_EQ(rank.line(seconds(60)), "ready");
  }
};

TEST(Processes, AKilledRankIsNamedWithinFiveSeconds) {
  for (const char* where : {"arena", "staged"}) {
    Job job(3, 60'000, where);
    const int victim = job.ranks[1].pid();
    job.ranks[1].signal(SIGKILL);
    const auto start = Clock::now();
    for (const size_t r : {size_t{0}, size_t{2}}) {
      const std::string text = job.ranks[r].line(seconds(20));
      EXPECT_NE(text.find(fmt::format("rank 1 (pid {} on", victim)), std::string::npos) << where << ": " << text;
      EXPECT_NE(text.find("died"), std::string::npos) << where << ": " << text;
      EXPECT_NE(text.find("all_reduce(sum, F32 x 262144) #"), std::string::npos) << where << ": " << text;
      EXPECT_EQ(WEXITSTATUS(job.ranks[r].wait()), 3);
    }
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 5.0) << where;
    job.ranks[1].wait();
    expect_nothing_left(job.address);
  }
}

TEST(Processes, AStoppedRankIsNamedAsStoppedAtTheDeadline) {
  Job job(2, 2'000, "arena");
  const int victim = job.ranks[0].pid();
  job.ranks[0].signal(SIGSTOP);
  const std::string text = job.ranks[1].line(seconds(30));
  EXPECT_NE(text.find(fmt::format("rank 0 (pid {} on", victim)), std::string::npos) << text;
  EXPECT_NE(text.find("it is stopped"), std::string::npos) << text;
  EXPECT_NE(text.find("deadline of 2.0 s"), std::string::npos) << text;
}

TEST(Processes, NothingIsLeftWhenAllAreKilled) {
  std::string address;
  {
    Job job(2, 60'000, "arena");
    address = job.address;
    for (Rank& rank : job.ranks) rank.signal(SIGKILL);
    for (Rank& rank : job.ranks) rank.wait();
  }
  expect_nothing_left(address);
}

TEST(Processes, RanksThatDoNotComeForTheArenaAreNamed) {
  const std::string address = Arena::random_address();
  try {
    Arena::attach(address, 1, Clock::now() + milliseconds(100));
    FAIL() << "attached to nobody";
  } catch (const WorkerError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 did not hand over"), std::string::npos) << error.what();
  }
  const auto arena = Arena::create(4);
  const FileDescriptor door = Arena::listen(address);
  std::thread second([&] { Arena::attach(address, 2, Clock::now() + seconds(20)); });
  try {
    arena->hand_out(door, Clock::now() + milliseconds(1000));
    ADD_FAILURE() << "handed out to nobody";
  } catch (const WorkerError& error) {
    EXPECT_NE(std::string(error.what()).find("did not come"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("1, 3"), std::string::npos) << error.what();
  }
  second.join();
}

}  // namespace
}  // namespace trireme::comm

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--rank") return trireme::comm::run_rank({argv + 2, argv + argc});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
