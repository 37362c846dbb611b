// Every operation x {a rank is killed, is stopped, is late}: the others name it, say what it is, and what they waited
// for, within seconds. `make test` runs a seeded sample; TRIREME_SOAK=1 all of it. Ranks are processes.
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/shm_group.h"
#include "processes.h"
#include "ranks.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::make_call;
using testing::Rank;

constexpr int64_t ranks = 3;
constexpr int64_t victim = 1;
constexpr int64_t timeout_ms = 1500;
constexpr int64_t count = 40'000;  // beyond the inlined size; several pieces

std::atomic<bool> told_to_be_late{false};

// Buffers of one rank: `wide` of a block for each rank, and `small`.
struct Buffers {
  std::vector<std::byte> own;
  std::byte *wide, *other, *small, *result;

  Buffers(ShmGroup& group, bool in_arena) {
    const int64_t block = count * 4, total = block * (2 * ranks + 2);
    std::byte* at = nullptr;
    if (in_arena) {
      at = group.shared_alloc("buffers", total * ranks) + total * group.rank();
    } else {
      own.resize(static_cast<size_t>(total));
      at = own.data();
    }
    wide = at;
    other = wide + block * ranks;
    small = other + block * ranks;
    result = small + block;
  }
};

using Round = std::function<void(ShmGroup&, Buffers&)>;

Call list(Kind kind, std::vector<const void*> inputs, std::vector<void*> outputs, std::vector<int64_t> counts,
          std::vector<int64_t> output_counts = {}) {
  Call call = make_call(kind, DType::f32, 0, nullptr, nullptr);
  call.extents = std::make_shared<Extents>(
      Extents{std::move(inputs), std::move(outputs), std::move(counts), std::move(output_counts)});
  return call;
}

// One round of each operation, by the name that the others' message must hold.
const std::map<std::string, Round>& operations() {
  static const std::map<std::string, Round> all = {
      {"all_reduce(sum, F32 x 40000)",
       [](ShmGroup& g, Buffers& b) { g.run(make_call(Kind::all_reduce, DType::f32, count, b.small, b.small)); }},
      {"all_reduce(sum, F32 x 40000 in 2 tensors)",
       [](ShmGroup& g, Buffers& b) {
         g.run(list(Kind::all_reduce, {b.small, b.result}, {b.small, b.result}, {count - 7, 7}));
       }},
      {"reduce(sum, F32 x 40000, root 0)",
       [](ShmGroup& g, Buffers& b) { g.run(make_call(Kind::reduce, DType::f32, count, nullptr, b.small)); }},
      {"all_gather(F32 x 40000)",
       [](ShmGroup& g, Buffers& b) { g.run(make_call(Kind::all_gather, DType::f32, count, b.small, b.wide)); }},
      {"all_gather(F32 x 40007, uneven)",
       [](ShmGroup& g, Buffers& b) {
         g.run(list(Kind::all_gather, {b.small}, {b.wide}, {count, 0, 7}));
       }},
      {"gather(F32 x 40000, root 2)",
       [](ShmGroup& g, Buffers& b) {
         g.run(make_call(Kind::gather, DType::f32, count, b.small, g.rank() == 2 ? b.wide : nullptr, 2));
       }},
      {"reduce_scatter(sum, F32 x 40000)",
       [](ShmGroup& g, Buffers& b) { g.run(make_call(Kind::reduce_scatter, DType::f32, count, b.wide, b.small)); }},
      {"reduce_scatter(sum, F32 x 40007, uneven)",
       [](ShmGroup& g, Buffers& b) {
         g.run(list(Kind::reduce_scatter, {b.wide}, {b.small}, {7, count, 0}));
       }},
      {"scatter(F32 x 40000, root 0)",
       [](ShmGroup& g, Buffers& b) {
         g.run(make_call(Kind::scatter, DType::f32, count, g.rank() == 0 ? b.wide : nullptr, b.small));
       }},
      {"broadcast(F32 x 40000, root 1)",
       [](ShmGroup& g, Buffers& b) { g.run(make_call(Kind::broadcast, DType::f32, count, nullptr, b.small, 1)); }},
      {"all_to_all(F32 x 40000)",
       [](ShmGroup& g, Buffers& b) { g.run(make_call(Kind::all_to_all, DType::f32, count, b.wide, b.other)); }},
      {"all_to_all(F32 x 40009, uneven)",
       [](ShmGroup& g, Buffers& b) {  // each gives 9 to rank 0, nothing to rank 1 and the rest to rank 2
         const int64_t mine = g.rank() == 0 ? 9 : g.rank() == 1 ? 0 : count;
         g.run(list(Kind::all_to_all, {b.wide}, {b.other}, {9, 0, count}, {mine, mine, mine}));
       }},
      {"barrier", [](ShmGroup& g, Buffers&) { g.run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr)); }},
      {"recv(F32 x 40000",
       [](ShmGroup& g, Buffers& b) {  // round the ring
         const auto sent = g.post(make_call(Kind::send, DType::f32, count, b.small, nullptr, (g.rank() + 1) % ranks));
         g.run(make_call(Kind::recv, DType::f32, count, nullptr, b.result, (g.rank() + ranks - 1) % ranks));
         g.wait(*sent);
       }},
  };
  return all;
}

// args: address, rank, operation, where
int run_rank(const std::vector<std::string>& args) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGUSR1, [](int) { told_to_be_late = true; });
  try {
    GroupOptions options;
    options.axis = "data";
    options.rank = std::stoll(args[1]);
    options.timeout = milliseconds(timeout_ms);
    ShmGroup group(testing::meet(args[0], options.rank, ranks), options);
    Buffers buffers(group, args[3] == "arena");
    const Round& round = operations().at(args[2]);
    for (int64_t i = 0;; ++i) {
      round(group, buffers);
      if (i == 3) {
        std::printf("ready\n");
        std::fflush(stdout);
      }
      while (told_to_be_late) std::this_thread::sleep_for(milliseconds(10));
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
    return 3;
  }
}

struct Case {
  std::string operation;
  std::string where;
  int signal;
  const char* word;  // what the others say about the victim
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& [name, round] : operations()) {
    for (const char* where : {"arena", "staged"}) {
      cases.push_back({name, where, SIGKILL, "died"});
      cases.push_back({name, where, SIGSTOP, "it is stopped"});
      cases.push_back({name, where, SIGUSR1, "it is alive, but late"});
    }
  }
  return cases;
}

void run(const Case& one) {
  const std::string address = Arena::random_address();
  std::vector<Rank> job;
  for (int64_t r = 0; r < ranks; ++r) {
    job.emplace_back(std::vector<std::string>{address, std::to_string(r), one.operation, one.where});
  }
  for (Rank& rank : job) ASSERT_EQ(rank.line(seconds(60)), "ready");
  job[victim].signal(one.signal);
  // Whoever gives up first has its own words; the other passes them on.
  std::string texts;
  for (const int64_t r : {0, 2}) {
    const std::string text = job[static_cast<size_t>(r)].line(seconds(30));
    EXPECT_NE(text.find(fmt::format("rank {} (pid {} on", victim, job[victim].pid())), std::string::npos) << text;
    EXPECT_NE(text.find(one.word), std::string::npos) << text;
    EXPECT_NE(text.find("on axis data"), std::string::npos) << text;
    texts += text + "\n";
    EXPECT_EQ(WEXITSTATUS(job[static_cast<size_t>(r)].wait()), 3);
  }
  EXPECT_NE(texts.find(one.operation), std::string::npos) << texts;
}

TEST(Failures, OfEveryOperationAreToldApart) {
  std::vector<Case> cases = all_cases();
  const char* soak = std::getenv("TRIREME_SOAK");
  if (soak == nullptr || std::string(soak) != "1") {
    // A fixed sample, two of each kind of failure: one that changed by itself would hide which change broke it.
    std::shuffle(cases.begin(), cases.end(), std::mt19937(20));
    std::vector<Case> sample;
    for (const int signal : {SIGKILL, SIGSTOP, SIGUSR1}) {
      int taken = 0;
      for (const Case& one : cases) {
        if (one.signal == signal && taken++ < 2) sample.push_back(one);
      }
    }
    cases = sample;
  }
  for (const Case& one : cases) {
    SCOPED_TRACE(fmt::format("{}, {}, signal {}", one.operation, one.where, one.signal));
    run(one);
  }
}

}  // namespace
}  // namespace trireme::comm

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--rank") return trireme::comm::run_rank({argv + 2, argv + argc});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
