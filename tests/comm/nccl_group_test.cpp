// What comm.backend = nccl adds to the suites that it shares with shm: sums whose bits are those of a sum in rank
// order, and failures that are told by name. There is no GPU in it: a stand-in (stand_in.cpp) behaves as NCCL says it
// does. Ranks are threads, or this binary, executed again with `--rank RANK RANKS FOLDER TIMEOUT`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "comm/reduce.h"
#include "nccl_ranks.h"
#include "processes.h"
#include "ranks.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::make_call;
using ::testing::Not;
using testing::Rank;
using testing::run_nccl_ranks;
using Texts = std::vector<std::string>;

// Numbers whose sum depends on the order.
std::vector<float> numbers_of(int64_t rank, int64_t count) {
  std::mt19937 generator(static_cast<uint32_t>(rank + 1));
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<std::byte> as(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(size_of(dtype)));
  if (dtype == DType::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else if (dtype == DType::f64) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = static_cast<double>(values[i]) * 1.1;
      std::memcpy(bytes.data() + i * 8, &value, 8);
    }
  } else {
    convert(bytes.data(), dtype, values.data(), DType::f32, static_cast<int64_t>(values.size()));
  }
  return bytes;
}

void check_bits(const std::shared_ptr<NcclGroup>& group, DType dtype, int64_t count, Reduction how) {
  const int64_t n = group->size();
  std::vector<std::vector<std::byte>> all;
  std::vector<const void*> terms;
  for (int64_t r = 0; r < n; ++r) all.push_back(as(dtype, numbers_of(r, count)));
  for (const auto& theirs : all) terms.push_back(theirs.data());
  const auto own = all[static_cast<size_t>(group->rank())];
  std::vector<std::byte> expected(own.size()), found = own, apart(own.size()), mine = own;
  void* to = expected.data();
  reduce({&to, 1}, terms, count, dtype, how);
  group->run(make_call(Kind::all_reduce, dtype, count, found.data(), apart.data(), 0, how));
  EXPECT_EQ(apart, expected) << name_of(dtype) << " x " << count << ", out of place";
  group->run(make_call(Kind::all_reduce, dtype, count, nullptr, found.data(), 0, how));
  EXPECT_EQ(found, expected) << name_of(dtype) << " x " << count;
  group->run(make_call(Kind::reduce, dtype, count, nullptr, mine.data(), n - 1, how));
  EXPECT_EQ(mine, group->rank() == n - 1 ? expected : own);
  if (count % n != 0) return;
  const int64_t part = count / n;
  const auto bytes = static_cast<size_t>(part * size_of(dtype));
  std::vector<std::byte> block(bytes);
  group->run(make_call(Kind::reduce_scatter, dtype, part, own.data(), block.data(), 0, how));
  EXPECT_EQ(std::memcmp(block.data(), expected.data() + static_cast<size_t>(group->rank()) * bytes, bytes), 0)
      << "reduce_scatter of " << name_of(dtype) << " x " << count;
}

TEST(NcclGroup, SumsHaveTheBitsOfASumInRankOrder) {
  for (const int64_t ranks : {2, 3}) {
    testing::expect_no_errors(run_nccl_ranks(ranks, [](const std::shared_ptr<NcclGroup>& group) {
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
        for (const int64_t count : {1, 700, 100'002}) {
          for (const Reduction how :
               {Reduction(), Reduction(ReduceOp::avg), Reduction(ReduceOp::sum, 0.3), Reduction(ReduceOp::max)})
            check_bits(group, dtype, count, how);
          if (dtype == DType::f32 || dtype == DType::f64) check_bits(group, dtype, count, Reduction::in_tree());
        }
      }
    }));
  }
}

TEST(NcclGroup, CallsOverlapAndEndInTheirOrder) {
  testing::expect_no_errors(run_nccl_ranks(3, [](const std::shared_ptr<NcclGroup>& group) {
    std::vector<std::vector<float>> data(40, std::vector<float>(30'000, static_cast<float>(group->rank() + 1)));
    std::vector<std::shared_ptr<Operation>> operations;
    for (auto& values : data)
      operations.push_back(group->post(make_call(Kind::all_reduce, DType::f32, 30'000, nullptr, values.data())));
    group->wait(*operations.back());
    for (size_t i = 0; i < data.size(); ++i) {
      EXPECT_TRUE(operations[i]->done) << i;
      EXPECT_EQ(data[i], std::vector<float>(30'000, 6.0F)) << i;
    }
  }));
}

// ---- failures, with ranks as threads

// Numbers that outlive the call: what was queued when it failed may still be written.
std::vector<float>& kept(size_t count) {
  static std::mutex mutex;
  static std::deque<std::vector<float>> all;
  const std::lock_guard lock(mutex);
  return all.emplace_back(count);
}

Call sum_of(int64_t count, void* data) { return make_call(Kind::all_reduce, DType::f32, count, nullptr, data); }

void expect_words(const Texts& errors, const Texts& words) {
  for (const std::string& error : errors) {
    for (const std::string& word : words) EXPECT_THAT(error, HasSubstr(word));
  }
}

TEST(NcclGroup, CallsThatDifferAreAnErrorOnEveryRankThatShowsBoth) {
  expect_words(run_nccl_ranks(2,
                              [](const std::shared_ptr<NcclGroup>& group) {
                                std::vector<float>& data = kept(4096);
                                group->run(sum_of(4, data.data()));
                                group->run(sum_of(group->rank() == 0 ? 2000 : 3000, data.data()));
                              }),
               {"differs", "all_reduce(sum, F32 x 2000)", "all_reduce(sum, F32 x 3000)"});
  expect_words(run_nccl_ranks(2,
                              [](const std::shared_ptr<NcclGroup>& group) {
                                std::vector<float>& data = kept(64);
                                group->run(group->rank() == 0
                                               ? sum_of(8, data.data())
                                               : make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
                              }),
               {"call #1 on axis data differs", "all_reduce(sum, F32 x 8)", "calls barrier"});
  expect_words(run_nccl_ranks(
                   2,
                   [](const std::shared_ptr<NcclGroup>& group) {
                     std::vector<float>& data = kept(6);
                     Call call = sum_of(6, data.data());
                     call.shape = group->rank() == 0 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{3, 2};
                     group->run(std::move(call));
                   },
                   seconds(60), CheckLevel::shapes),
               {"call #1 on axis data differs", "other shapes"});
  expect_words(run_nccl_ranks(2,
                              [](const std::shared_ptr<NcclGroup>& group) {
                                std::vector<float>& data = kept(8);
                                group->run(group->rank() == 0
                                               ? make_call(Kind::send, DType::f32, 5, data.data(), nullptr, 1)
                                               : make_call(Kind::recv, DType::f32, 6, nullptr, data.data(), 0));
                                group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
                              }),
               {"message #1 from rank 0 to rank 1 on axis data differs", "F32 x 5", "F32 x 6"});
  // The sender of too much need not be the one that expects less, so who sees it is told what the other gives.
  const auto errors = run_nccl_ranks(2, [](const std::shared_ptr<NcclGroup>& group) {
    std::vector<float>&in = kept(16), &out = kept(16);
    Call call;
    call.kind = Kind::all_to_all;
    call.dtype = DType::f32;
    auto extents = std::make_shared<Extents>();
    extents->inputs = {in.data()};
    extents->outputs = {out.data()};
    extents->counts = {1, 2};
    extents->output_counts = group->rank() == 0 ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{3, 2};
    call.extents = extents;
    group->run(std::move(call));
    group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));  // rank 0 had what it expected
  });
  EXPECT_THAT(errors[1], HasSubstr("gives 2 elements to rank 1; rank 1"));
  EXPECT_THAT(errors[1], HasSubstr("expects 3"));
  EXPECT_THAT(errors[0], HasSubstr("differs"));
}

TEST(NcclGroup, ADeadlineNamesTheLateRank) {
  const Texts errors = run_nccl_ranks(
      3,
      [](const std::shared_ptr<NcclGroup>& group) {
        std::vector<float>& data = kept(4);
        group->run(sum_of(4, data.data()));
        if (group->rank() == 1) std::this_thread::sleep_for(seconds(9));
        group->run(sum_of(4, data.data()));
      },
      seconds(4));
  for (const size_t r : {0, 2}) {
    EXPECT_THAT(errors[r], HasSubstr("all_reduce(sum, F32 x 4) #2 on axis data")) << r;
    EXPECT_THAT(errors[r], HasSubstr("Did not arrive: rank 1 (pid ")) << r;
    EXPECT_THAT(errors[r], HasSubstr("it is alive, but late")) << r;
    EXPECT_THAT(errors[r], Not(HasSubstr("; rank"))) << r;
  }
  EXPECT_THAT(errors[1], HasSubstr("because another rank failed"));
}

TEST(NcclGroup, ARankThatDoesNotComeToAGroupIsNamed) {
  const Texts errors = run_nccl_ranks(
      2,
      [](const std::shared_ptr<NcclGroup>& group) {
        if (group->rank() == 0) return std::this_thread::sleep_for(seconds(6));
        GroupOptions options;
        options.axis = "edge";
        options.members = {0, 1};
        options.rank = 1;
        options.timeout = group->timeout();
        group->subgroup(options);
      },
      seconds(4));
  EXPECT_THAT(errors[1], HasSubstr("making the group of axis edge failed: its deadline of 4.0 s"));
  EXPECT_THAT(errors[1], HasSubstr("Did not arrive: rank 0 (pid "));
}

TEST(NcclGroup, AnAbortEndsThePeersWait) {
  std::vector<float>& data = kept(4);
  std::atomic<bool> posted = false;
  const Texts errors = run_nccl_ranks(2, [&](const std::shared_ptr<NcclGroup>& group) {
    if (group->rank() == 1) {
      while (!posted) std::this_thread::sleep_for(milliseconds(1));
      return group->abort("out of luck");
    }
    const std::shared_ptr<Operation> operation = group->post(sum_of(4, data.data()));
    posted = true;
    const auto start = Clock::now();
    try {
      group->wait(*operation);
    } catch (const WorkerError& error) {
      EXPECT_LT(Clock::now() - start, seconds(20));
      EXPECT_THROW(group->run(sum_of(4, data.data())), WorkerError) << "and every later call";
      throw;
    }
  });
  EXPECT_THAT(
      errors[0],
      HasSubstr("all_reduce(sum, F32 x 4) #1 on axis data cannot complete, because another rank failed: rank 1"));
  EXPECT_THAT(errors[0], HasSubstr("out of luck"));
}

// The library tells it later, and to nobody but who asks.
TEST(NcclGroup, AnErrorThatComesLaterIsTold) {
  ::setenv("TRIREME_STAND_IN_FAULT", "1,4", 1);
  const Texts errors = run_nccl_ranks(2, [](const std::shared_ptr<NcclGroup>& group) {
    std::vector<float>& data = kept(4);
    for (int i = 0; i < 10; ++i) group->run(sum_of(4, data.data()));
  });
  ::unsetenv("TRIREME_STAND_IN_FAULT");
  EXPECT_THAT(errors[1], HasSubstr("remote process exited or there was a network error"));
  EXPECT_THAT(errors[1], HasSubstr("all_reduce(sum, F32 x 4) #"));
  EXPECT_THAT(errors[0], HasSubstr("because another rank failed: rank 1 on "));
  EXPECT_THAT(errors[0], HasSubstr("remote process exited"));
}

TEST(NcclGroup, AMissingPlugInSaysWhatToBuild) {
  const std::string before = std::getenv("TRIREME_NCCL_PLUGIN");
  for (const auto& [plugin, words] :
       {std::pair<std::string, std::string>{"/nowhere/libtrireme_nccl.so",
                                            "not at /nowhere/libtrireme_nccl.so: tools/build-nccl.sh builds it"},
        {"/proc/self/exe", "cannot be loaded"}}) {
    ::setenv("TRIREME_NCCL_PLUGIN", plugin.c_str(), 1);
    const Rank loads({"load"});
    EXPECT_THAT(loads.line(seconds(20)), HasSubstr(words));
  }
  ::setenv("TRIREME_NCCL_PLUGIN", before.c_str(), 1);
}

// ---- failures, with ranks as processes

// Keys are files, which appear whole.
class FolderBoard final : public Board {
 public:
  explicit FolderBoard(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void set(const std::string& key, const std::string& value) override {
    const auto path = folder_ / hash_hex(key);
    const auto fresh = fmt::format("{}.{}", path.string(), ::getpid());
    write_file_durably(fresh, value);
    std::filesystem::rename(fresh, path);
  }
  std::optional<std::string> get(const std::string& key) override {
    const auto path = folder_ / hash_hex(key);
    return std::filesystem::exists(path) ? std::optional(read_file(path)) : std::nullopt;
  }

 private:
  std::filesystem::path folder_;
};

void print_line(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

// The plug-in is loaded once in a process.
int only_load() {
  try {
    load_nccl();
    print_line("loaded");
  } catch (const InputError& error) {
    print_line(error.what());
  }
  return 0;
}

int run_rank(int64_t rank, int64_t ranks, const std::string& folder, milliseconds timeout) {
  const NcclTable& nccl = load_nccl();
  std::shared_ptr<NcclGroup> group;
  try {
    GroupOptions options;
    options.axis = "data";
    options.rank = rank;
    options.timeout = timeout;
    for (int64_t r = 0; r < ranks; ++r) options.members.push_back(r);
    group = std::make_shared<NcclGroup>(
        std::make_shared<NcclWorld>(nccl, std::make_shared<HostDevice>(nccl), std::make_shared<FolderBoard>(folder),
                                    rank, ranks, seconds(30)),
        options);
    std::vector<float> data(30'000);
    for (int i = 0;; ++i) {
      group->run(sum_of(30'000, data.data()));
      if (i == 20) print_line("running");
    }
  } catch (const std::exception& error) {
    print_line(error.what());
    if (group != nullptr) group->abort(error.what());
  }
  return 0;
}

class Folder {
 public:
  Folder() : path_(::testing::TempDir() + fmt::format("trireme-nccl-{}-{}", ::getpid(), ++count_)) {
    std::filesystem::remove_all(path_);
    make_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  static inline int count_ = 0;
  std::string path_;
};

std::vector<Rank> start(int64_t ranks, const std::string& folder, milliseconds timeout) {
  std::vector<Rank> started;
  for (int64_t r = 0; r < ranks; ++r)
    started.emplace_back(Texts{std::to_string(r), std::to_string(ranks), folder, std::to_string(timeout.count())});
  for (const Rank& rank : started) EXPECT_EQ(rank.line(seconds(60)), "running");
  return started;
}

TEST(NcclGroup, ARankThatDiesIsNamed) {
  const Folder folder;
  const std::vector<Rank> ranks = start(3, folder.path(), seconds(60));
  const int pid = ranks[1].pid();
  ranks[1].signal(SIGKILL);
  const auto start = Clock::now();
  for (const size_t r : {0, 2}) {
    const std::string line = ranks[r].line(seconds(20));
    EXPECT_THAT(line, HasSubstr("all_reduce(sum, F32 x 30000) #")) << r;
    EXPECT_THAT(line, HasSubstr(fmt::format("rank 1 (pid {} on ", pid))) << r;
    EXPECT_THAT(line, HasSubstr("died")) << r;
  }
  EXPECT_LT(Clock::now() - start, seconds(20));
}

TEST(NcclGroup, ARankThatIsStoppedIsNamedAtTheDeadline) {
  const Folder folder;
  const std::vector<Rank> ranks = start(2, folder.path(), milliseconds(5000));
  ranks[1].signal(SIGSTOP);
  const std::string line = ranks[0].line(seconds(20));
  EXPECT_THAT(line, HasSubstr("its deadline of 5.0 s is over"));
  EXPECT_THAT(line, HasSubstr(fmt::format("rank 1 (pid {} on ", ranks[1].pid())));
  EXPECT_THAT(line, HasSubstr("it is stopped (by a signal or a debugger)"));
}

}  // namespace
}  // namespace trireme::comm

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--rank")
    return trireme::comm::run_rank(std::stoll(argv[2]), std::stoll(argv[3]), argv[4],
                                   std::chrono::milliseconds(std::stoll(argv[5])));
  if (argc == 3 && std::string(argv[2]) == "load") return trireme::comm::only_load();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
