// Groups built anew: by processes of which one is killed, and to which one is added; and what must be refused.
#include "comm/rebuild.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "processes.h"
#include "ranks.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::make_call;
using testing::Rank;

std::atomic<bool> told_to_leave{false};

int64_t arenas_mapped() {
  std::ifstream maps("/proc/self/maps");
  int64_t found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find("trireme-arena") != std::string::npos;
  return found;
}

int64_t sum(Group& group, int64_t value) {
  group.run(make_call(Kind::all_reduce, DType::i64, 1, &value, &value));
  return value;
}

// args: meeting, id, first generation, ranks of generation 0. A member for ever; tells each new group. A large buffer
// of every generation lies in its arena, so that one that stays mapped would show.
int run_rank(const std::vector<std::string>& args) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGUSR1, [](int) { told_to_leave = true; });
  const int64_t id = std::stoll(args[1]);
  int64_t generation = std::stoll(args[2]);
  try {
    std::shared_ptr<ShmGroup> group;
    for (;; ++generation) {
      try {
        if (generation == 0) {
          GroupOptions options;
          options.rank = id;
          options.timeout = seconds(30);
          group = std::make_shared<ShmGroup>(testing::meet(args[0], id, std::stoll(args[3])), options);
        } else {
          RebuildOptions options;
          options.meeting = args[0];
          options.generation = generation;
          options.id = id;
          options.at_least = 2;
          options.expected = generation == 1 ? 3 : 4;
          options.settle = seconds(30);
          options.timeout = seconds(30);
          group = rebuild(options);
        }
        std::byte* data = group->shared_alloc("data", group->size() << 20) + (group->rank() << 20);
        group->run(make_call(Kind::all_reduce, DType::f32, 1 << 18, data, data));
        std::printf("generation %d: rank %d of %d, sum of ids %d, %d arena\n", static_cast<int>(generation),
                    static_cast<int>(group->rank()), static_cast<int>(group->size()), static_cast<int>(sum(*group, id)),
                    static_cast<int>(arenas_mapped()));
        std::fflush(stdout);
        for (;;) {
          sum(*group, 1);
          if (told_to_leave.exchange(false)) group->abort("a newcomer wants to join", false);
          std::this_thread::sleep_for(milliseconds(1));
        }
      } catch (const WorkerError&) {
        group.reset();  // and the arena with it
      }
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
    return 3;
  }
}

TEST(Rebuild, SurvivorsGoOnWithFewerRanksAndANewcomerJoins) {
  const std::string meeting = Arena::random_address();
  std::vector<Rank> job;
  for (int64_t r = 0; r < 4; ++r) {
    job.emplace_back(std::vector<std::string>{meeting, std::to_string(r), "0", "4"});
  }
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(job[r].line(seconds(60)), fmt::format("generation 0: rank {} of 4, sum of ids 6, 1 arena", r));
  }
  job[0].signal(SIGKILL);  // the one that made the arena
  job[0].wait();
  for (size_t r = 1; r < 4; ++r) {
    EXPECT_EQ(job[r].line(seconds(60)), fmt::format("generation 1: rank {} of 3, sum of ids 6, 1 arena", r - 1));
  }
  job.emplace_back(std::vector<std::string>{meeting, "7", "2", "4"});
  job[2].signal(SIGUSR1);
  for (size_t r = 1; r < 5; ++r) {
    EXPECT_EQ(job[r].line(seconds(60)), fmt::format("generation 2: rank {} of 4, sum of ids 13, 1 arena", r - 1));
  }
  for (Rank& rank : job) rank.signal(SIGKILL);
  job.clear();
  testing::expect_nothing_left(meeting);
}

// Ranks as threads: what they get, or the error.
std::vector<std::string> rebuild_on_threads(const std::vector<RebuildOptions>& all) {
  std::vector<std::string> results(all.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        const auto group = rebuild(all[i]);
        results[i] = fmt::format("rank {} of {}: {}", group->rank(), group->size(), sum(*group, all[i].id));
      } catch (const Error& error) {
        results[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<RebuildOptions> members(std::vector<int64_t> ids) {
  std::vector<RebuildOptions> all;
  const std::string meeting = Arena::random_address();
  for (const int64_t id : ids) {
    RebuildOptions options;
    options.meeting = meeting;
    options.id = id;
    options.settle = milliseconds(500);
    all.push_back(options);
  }
  return all;
}

TEST(Rebuild, RanksFollowTheIds) {
  auto all = members({40, 7, 23});
  for (auto& options : all) options.expected = 3;
  EXPECT_EQ(rebuild_on_threads(all),
            (std::vector<std::string>{"rank 2 of 3: 70", "rank 0 of 3: 70", "rank 1 of 3: 70"}));
}

TEST(Rebuild, WithoutAnExpectedNumberTheDoorClosesWhenNobodyComes) {
  EXPECT_EQ(rebuild_on_threads(members({1, 2})), (std::vector<std::string>{"rank 0 of 2: 3", "rank 1 of 2: 3"}));
  EXPECT_EQ(rebuild_on_threads(members({5})), (std::vector<std::string>{"rank 0 of 1: 5"}));
}

TEST(Rebuild, TooFewAreToldHowMany) {
  auto all = members({1, 2});
  for (auto& options : all) options.at_least = 3;
  for (const std::string& text : rebuild_on_threads(all)) {
    EXPECT_NE(text.find("2 came for generation 1, and at least 3 are needed"), std::string::npos) << text;
  }
}

TEST(Rebuild, AnIdThatIsTakenIsRefused) {
  auto all = members({4, 4});
  const auto results = rebuild_on_threads(all);
  EXPECT_EQ(std::count(results.begin(), results.end(), "rank 0 of 1: 4"), 1);
  EXPECT_EQ(std::count(results.begin(), results.end(), "two processes come to generation 1 with the id 4"), 1);
  EXPECT_THROW(rebuild({}), InputError);
}

}  // namespace
}  // namespace trireme::comm

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--rank") return trireme::comm::run_rank({argv + 2, argv + argc});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
