// What comm.backend = mpi adds to the suites that it shares with shm: sums whose bits are those of a sum in rank order,
// and failures that are told by name. A failure ends a world for good, so each has an mpirun of its own: this binary
// starts itself again with `--case NAME`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/reduce.h"
#include "mpi_ranks.h"
#include "ranks.h"

namespace trireme::comm {
namespace {

using ::testing::HasSubstr;
using testing::make_call;

// ---- what a rank does in a case; what it throws is printed

std::shared_ptr<Group> make_world(std::chrono::milliseconds timeout, CheckLevel check = CheckLevel::calls) {
  const LaunchEnvironment environment = detect_environment();
  const auto settings = std::make_shared<GroupSettings>();
  settings->check = check;
  GroupOptions options;
  options.axis = "data";
  options.settings = settings;
  options.timeout = timeout;
  options.rank = environment.rank;
  for (int64_t r = 0; r < environment.world_size; ++r) options.members.push_back(r);
  return std::make_shared<MpiGroup>(MpiWorld::open(environment.rank, environment.world_size, std::chrono::seconds(30)),
                                    options);
}

// Numbers whose sum depends on the order, and the sum in rank order of what all ranks have.
std::vector<float> numbers_of(int64_t rank, int64_t count) {
  std::mt19937 generator(static_cast<uint32_t>(rank + 1));
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

void check_bits(const std::shared_ptr<Group>& group) {
  const int64_t n = group->size();
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const int64_t count : {int64_t{1}, int64_t{700}, int64_t{1000}, int64_t{100'003}}) {
      for (const Reduction how :
           {Reduction(), Reduction(ReduceOp::avg), Reduction(ReduceOp::sum, 0.3), Reduction(ReduceOp::max)}) {
        const auto bytes = static_cast<size_t>(count * size_of(dtype));
        std::vector<std::vector<std::byte>> all(static_cast<size_t>(n), std::vector<std::byte>(bytes));
        std::vector<const void*> terms;
        for (int64_t r = 0; r < n; ++r) {
          std::vector<std::byte>& theirs = all[static_cast<size_t>(r)];
          const std::vector<float> values = numbers_of(r, count);
          if (dtype == DType::f32) {
            std::memcpy(theirs.data(), values.data(), bytes);
          } else if (dtype == DType::f64) {
            for (int64_t i = 0; i < count; ++i) {
              const double value = static_cast<double>(values[static_cast<size_t>(i)]) * 1.1;
              std::memcpy(theirs.data() + i * 8, &value, 8);
            }
          } else {
            convert(theirs.data(), dtype, values.data(), DType::f32, count);
          }
          terms.push_back(theirs.data());
        }
        std::vector<std::byte> expected(bytes), found = all[static_cast<size_t>(group->rank())], apart(bytes);
        void* to = expected.data();
        reduce({&to, 1}, terms, count, dtype, how);
        group->run(make_call(Kind::all_reduce, dtype, count, found.data(), apart.data(), 0, how));
        EXPECT_EQ(apart, expected) << name_of(dtype) << " x " << count << ", out of place";
        group->run(make_call(Kind::all_reduce, dtype, count, found.data(), found.data(), 0, how));
        EXPECT_EQ(found, expected) << name_of(dtype) << " x " << count;
        std::vector<std::byte> mine = all[static_cast<size_t>(group->rank())];
        group->run(make_call(Kind::reduce, dtype, count, nullptr, mine.data(), n - 1, how));
        EXPECT_EQ(mine, group->rank() == n - 1 ? expected : all[static_cast<size_t>(group->rank())]);
      }
    }
  }
}

using Case = std::function<void()>;
const std::map<std::string, Case>& cases() {
  static std::array<float, 4096> data{};
  static const auto sum = [](int64_t count, void* to = nullptr) {
    return make_call(Kind::all_reduce, DType::f32, count, nullptr, to == nullptr ? data.data() : to);
  };
  static const std::map<std::string, Case> all = {
      {"counts differ",
       [] {
         const auto group = make_world(std::chrono::seconds(20));
         group->run(sum(4));
         group->run(sum(group->rank() == 0 ? 2000 : 3000));
       }},
      {"kinds differ",
       [] {
         const auto group = make_world(std::chrono::seconds(20));
         group->run(group->rank() == 0 ? sum(8) : make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
       }},
      {"shapes differ",
       [] {
         const auto group = make_world(std::chrono::seconds(20), CheckLevel::shapes);
         Call call = sum(6);
         call.shape = group->rank() == 0 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{3, 2};
         group->run(call);
       }},
      {"messages differ",
       [] {
         const auto group = make_world(std::chrono::seconds(20));
         const int64_t other = 1 - group->rank();
         group->run(group->rank() == 0 ? make_call(Kind::send, DType::f32, 5, data.data(), nullptr, other)
                                       : make_call(Kind::recv, DType::f32, 6, nullptr, data.data(), other));
         group->run(sum(1));
       }},
      {"late",
       [] {
         const auto group = make_world(std::chrono::milliseconds(1500));
         group->run(sum(4));
         if (group->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
         group->run(sum(4));
       }},
      {"aborts",
       [] {
         const auto group = make_world(std::chrono::seconds(20));
         if (group->rank() == 1) {
           group->abort("out of luck");
           std::this_thread::sleep_for(std::chrono::milliseconds(500));
           return;
         }
         group->run(sum(4));
       }},
      {"dies",
       [] {
         const auto group = make_world(std::chrono::seconds(20));
         group->run(sum(4));
         if (group->rank() == 1) ::kill(::getpid(), SIGKILL);
         group->run(sum(4));
       }},
      {"does not come to a subgroup",
       [] {
         const auto group = make_world(std::chrono::milliseconds(1500));
         if (group->rank() == 1) {
           std::this_thread::sleep_for(std::chrono::seconds(3));
           return;
         }
         GroupOptions options;
         options.axis = "edge";
         options.members = {0, 1};
         options.timeout = group->timeout();
         group->subgroup(options);
       }},
      {"bits", [] { check_bits(make_world(std::chrono::seconds(60))); }},
  };
  return all;
}

// mpirun tells a rank that is to end with SIGTERM; a trainer takes that for a request, and goes on to tell its story.
int run_case(const std::string& name) {
  ::signal(SIGTERM, SIG_IGN);
  int code = 0;
  try {
    cases().at(name)();
  } catch (const std::exception& error) {
    const std::string line = fmt::format("[{}] {}\n", detect_environment().rank, error.what());
    [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, line.data(), line.size());
    // The peers tell theirs too, before mpirun ends them.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    code = 3;
  }
  return ::testing::Test::HasFailure() ? 1 : code;
}

// ---- the tests

std::string output_of(const std::string& name, int ranks = 2) {
  const std::string command =
      fmt::format("timeout 60 {} -n {} /proc/{}/exe --case '{}' 2>&1", TRIREME_MPIEXEC, ranks, ::getpid(), name);
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> buffer{};
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  return fmt::format("{}\nstatus {}", text, WEXITSTATUS(status));
}

// The lines of a rank.
std::string of_rank(const std::string& output, int rank) {
  const size_t begin = output.find(fmt::format("[{}] ", rank));
  return begin == std::string::npos ? "" : output.substr(begin, output.find('\n', begin) - begin);
}

TEST(MpiGroup, SumsHaveTheBitsOfASumInRankOrder) {
  for (const int ranks : {2, 3}) {
    const std::string output = output_of("bits", ranks);
    EXPECT_THAT(output, HasSubstr("status 0")) << ranks << " ranks";
  }
}

TEST(MpiGroup, CallsThatDifferAreAnErrorOnEveryRankThatShowsBoth) {
  struct Row {
    const char* name;
    std::vector<std::string> words;
  };
  const std::vector<Row> rows = {
      {"counts differ", {"call #2 on axis data differs", "all_reduce(sum, F32 x 2000)", "all_reduce(sum, F32 x 3000)"}},
      {"kinds differ", {"call #1 on axis data differs", "all_reduce(sum, F32 x 8)", "calls barrier"}},
      {"shapes differ", {"differs", "of shape [2, 3]", "of shape [3, 2]"}},
      {"messages differ", {"message #1 from rank 0 to rank 1 on axis data differs", "F32 x 5", "F32 x 6"}},
  };
  for (const Row& row : rows) {
    const std::string output = output_of(row.name);
    for (const int rank : {0, 1}) {
      for (const std::string& word : row.words) EXPECT_THAT(of_rank(output, rank), HasSubstr(word)) << output;
    }
  }
}

TEST(MpiGroup, ADeadlineNamesTheLateRank) {
  const std::string output = output_of("late");
  EXPECT_THAT(of_rank(output, 0), HasSubstr("all_reduce(sum, F32 x 4) #2 on axis data failed: its deadline of 1.5 s"));
  EXPECT_THAT(of_rank(output, 0), HasSubstr("Did not arrive: rank 1 (pid "));
  EXPECT_THAT(of_rank(output, 0), HasSubstr("it is alive, but late"));
  const std::string group = output_of("does not come to a subgroup");
  EXPECT_THAT(of_rank(group, 0), HasSubstr("making the group of axis edge failed: its deadline of 1.5 s"));
  EXPECT_THAT(of_rank(group, 0), HasSubstr("rank 1 (pid "));
}

TEST(MpiGroup, AnAbortEndsThePeersWait) {
  EXPECT_THAT(
      of_rank(output_of("aborts"), 0),
      HasSubstr("all_reduce(sum, F32 x 4) #1 on axis data cannot complete, because another rank failed: rank 1"));
}

TEST(MpiGroup, ARankThatDiesIsNamed) {
  const std::string output = output_of("dies");
  EXPECT_THAT(of_rank(output, 0), HasSubstr("all_reduce(sum, F32 x 4) #2 on axis data failed after")) << output;
  EXPECT_THAT(of_rank(output, 0), HasSubstr("rank 1 (pid "));
  EXPECT_THAT(of_rank(output, 0), HasSubstr("died"));
}

TEST(MpiGroup, WithoutMpirunTheWorldIsNotWhatTheLauncherSays) {
  EXPECT_EXIT(
      {
        try {
          MpiWorld::open(0, 2, std::chrono::seconds(5));
        } catch (const InputError& error) {
          std::cerr << error.what() << "\n";
          std::_Exit(2);
        }
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(2), "MPI says rank 0 of 1; start the workers with the mpirun");
}

TEST(MpiGroup, AMissingPlugInSaysWhatToInstall) {
  ::setenv("TRIREME_MPI_PLUGIN", "/nowhere/libtrireme_mpi.so", 1);
  try {
    MpiWorld::open(0, 2, std::chrono::seconds(5));
    ADD_FAILURE() << "loaded";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("libopenmpi-dev and openmpi-bin"));
    EXPECT_THAT(error.what(), HasSubstr("make build"));
  }
  ::unsetenv("TRIREME_MPI_PLUGIN");
}

}  // namespace
}  // namespace trireme::comm

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--case") return trireme::comm::run_case(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
