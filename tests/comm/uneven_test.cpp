// Blocks of unequal size, lists of tensors in one call, and the calls with a root: over ranks as threads, compared
// exactly with what the definition of each call gives, for buffers in the arena and outside.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/shm_group.h"
#include "elements.h"
#include "mpi_ranks.h"
#include "nccl_ranks.h"
#include "ranks.h"

namespace trireme::comm {
namespace {

using testing::expect_no_errors;
using testing::fill;
using testing::first_difference;
using testing::make_call;
using testing::reduced;
using testing::run_ranks;
using testing::value_of;

// Memory of one rank: in the arena, where the peers read it, or outside.
class Memory {
 public:
  Memory(Group& group, bool in_arena, int64_t bytes) {
    if (in_arena) {
      shared_ = group.allocate("memory", bytes, false);
      next_ = shared_.data;
    } else {
      own_.resize(static_cast<size_t>(bytes));
      next_ = own_.data();
    }
    end_ = next_ + bytes;
  }
  std::byte* take(int64_t bytes) {
    std::byte* at = next_;
    next_ += (bytes + 63) / 64 * 64;
    EXPECT_LE(next_, end_);
    return at;
  }

 private:
  std::vector<std::byte> own_;
  Group::Memory shared_;
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
};

// Counts of a block for each tensor and rank. What rank r has in a block differs from rank to rank and place to place.
struct Row {
  const char* name;
  std::vector<std::vector<int64_t>> counts;  // [tensors][ranks]
};

std::vector<Row> rows_for(int64_t n) {
  const auto each = [n](auto count) {
    std::vector<int64_t> counts;
    for (int64_t r = 0; r < n; ++r) counts.push_back(count(r));
    return counts;
  };
  return {
      {"one rank has nothing", {each([](int64_t r) { return r == 0 ? 0 : 7; })}},
      {"only the last has something", {each([n](int64_t r) { return r == n - 1 ? 5 : 0; })}},
      {"nobody has anything", {each([](int64_t) { return 0; })}},
      {"primes beyond the inlined size", {each([](int64_t r) { return 2003 + 997 * r; })}},
      {"several staged pieces", {each([n](int64_t r) { return r == n / 2 ? 150'001 : 3; })}},
      {"three tensors, one of them empty",
       {each([](int64_t r) { return 11 + r; }), each([](int64_t) { return 0; }),
        each([](int64_t r) { return 3 * r; })}},
      {"three large tensors",
       {each([](int64_t r) { return 5000 + r; }), each([](int64_t) { return 1; }),
        each([](int64_t r) { return r == 0 ? 0 : 70'001; })}},
  };
}

int64_t sum(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
int64_t before(const std::vector<int64_t>& counts, int64_t b) {
  return std::accumulate(counts.begin(), counts.begin() + b, int64_t{0});
}

Call make_list_call(Kind kind, DType dtype, Extents extents, int64_t root = 0, Reduction how = {}) {
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  call.root = root;
  call.reduction = how;
  call.extents = std::make_shared<Extents>(std::move(extents));
  return call;
}

class Uneven : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Uneven, ::testing::Values(1, 2, 3, 5));

void run_alone_or_on_threads(int64_t ranks, const std::function<void(const std::shared_ptr<Group>&)>& body) {
  if (ranks == 1) return body(std::make_shared<ShmGroup>("data"));
  if (testing::under_mpi()) return testing::run_processes(ranks, body);
  if (testing::over_nccl()) return expect_no_errors(testing::run_nccl_ranks(ranks, body));
  expect_no_errors(run_ranks(ranks, body));
}

// Tensor t of rank r holds value_of(r + 7 t, i) at element i of the larger side.
TEST_P(Uneven, GatherAndReduceScatterOfLists) {
  run_alone_or_on_threads(GetParam(), [](const std::shared_ptr<Group>& group) {
    const int64_t n = group->size();
    const int64_t me = group->rank();
    for (const bool in_arena : {true, false}) {
      if (in_arena && n == 1) continue;
      for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
        for (const Row& row : rows_for(n)) {
          const std::string what = fmt::format("{} of {} in {} rank {} of {}", row.name, name_of(dtype),
                                               in_arena ? "the arena" : "ordinary memory", me, n);
          Memory memory(*group, in_arena, 6 << 20);
          Extents gather, scatter;
          for (size_t t = 0; t < row.counts.size(); ++t) {
            const std::vector<int64_t>& counts = row.counts[t];
            const int64_t mine = counts[static_cast<size_t>(me)];
            gather.inputs.push_back(memory.take(mine * size_of(dtype)));
            gather.outputs.push_back(memory.take(sum(counts) * size_of(dtype)));
            scatter.inputs.push_back(memory.take(sum(counts) * size_of(dtype)));
            scatter.outputs.push_back(memory.take(mine * size_of(dtype)));
            gather.counts.insert(gather.counts.end(), counts.begin(), counts.end());
            const auto value = [&](int64_t i) { return value_of(me + 7 * static_cast<int64_t>(t), i); };
            fill(dtype, static_cast<std::byte*>(const_cast<void*>(gather.inputs[t])), mine, value);
            fill(dtype, static_cast<std::byte*>(const_cast<void*>(scatter.inputs[t])), sum(counts), value);
          }
          scatter.counts = gather.counts;
          group->run(make_list_call(Kind::all_gather, dtype, gather));
          group->run(make_list_call(Kind::reduce_scatter, dtype, scatter));
          for (size_t t = 0; t < row.counts.size(); ++t) {
            const std::vector<int64_t>& counts = row.counts[t];
            for (int64_t r = 0; r < n; ++r) {
              const auto* got = static_cast<std::byte*>(gather.outputs[t]) + before(counts, r) * size_of(dtype);
              ASSERT_EQ(first_difference(dtype, got, counts[static_cast<size_t>(r)],
                                         [&](int64_t i) { return value_of(r + 7 * static_cast<int64_t>(t), i); }),
                        -1)
                  << "all_gather, tensor " << t << " from rank " << r << ", " << what;
            }
            ASSERT_EQ(
                first_difference(dtype, static_cast<std::byte*>(scatter.outputs[t]), counts[static_cast<size_t>(me)],
                                 [&](int64_t i) {
                                   int64_t total = 0;
                                   for (int64_t r = 0; r < n; ++r)
                                     total += value_of(r + 7 * static_cast<int64_t>(t), before(counts, me) + i);
                                   return total;
                                 }),
                -1)
                << "reduce_scatter, tensor " << t << ", " << what;
          }
        }
      }
    }
  });
}

TEST_P(Uneven, ListsThatAreReducedAndBroadcastInPlace) {
  run_alone_or_on_threads(GetParam(), [](const std::shared_ptr<Group>& group) {
    const int64_t n = group->size();
    const int64_t me = group->rank();
    const std::vector<std::vector<int64_t>> lists = {{3, 0, 5}, {4097, 1, 12'289}, {200'003, 64}};
    for (const bool in_arena : {true, false}) {
      if (in_arena && n == 1) continue;
      for (const auto& counts : lists) {
        for (const Kind kind : {Kind::all_reduce, Kind::reduce, Kind::broadcast}) {
          const int64_t root = n - 1;
          Memory memory(*group, in_arena, 2 << 20);
          Extents extents;
          extents.counts = counts;
          for (size_t t = 0; t < counts.size(); ++t) {
            std::byte* at = memory.take(counts[t] * 4);
            fill(DType::f32, at, counts[t], [&](int64_t i) { return value_of(me, i + static_cast<int64_t>(t)); });
            extents.inputs.push_back(at);
            extents.outputs.push_back(at);
          }
          group->run(make_list_call(kind, DType::f32, extents, root));
          for (size_t t = 0; t < counts.size(); ++t) {
            const auto expected = [&](int64_t i) {
              i += static_cast<int64_t>(t);
              if (kind == Kind::broadcast) return value_of(root, i);
              return kind == Kind::all_reduce || me == root ? reduced(ReduceOp::sum, n, i) : value_of(me, i);
            };
            ASSERT_EQ(first_difference(DType::f32, static_cast<std::byte*>(extents.outputs[t]), counts[t], expected),
                      -1)
                << name_of(kind) << " tensor " << t << " of " << counts[t] << " elements, rank " << me << " of " << n;
          }
        }
      }
    }
  });
}

// What rank r sends to rank s; some pairs have nothing.
int64_t exchanged(int64_t r, int64_t s, int64_t scale) {
  return (r + 2 * s) % 3 == 0 ? 0 : (r * 5 + s * 3 + 1) * scale;
}

TEST_P(Uneven, AllToAll) {
  run_alone_or_on_threads(GetParam(), [](const std::shared_ptr<Group>& group) {
    const int64_t n = group->size();
    const int64_t me = group->rank();
    for (const bool in_arena : {true, false}) {
      if (in_arena && n == 1) continue;
      for (const int64_t scale : {1, 37, 20'011}) {
        Memory memory(*group, in_arena, 16 << 20);
        Extents extents;
        for (int64_t r = 0; r < n; ++r) {
          extents.counts.push_back(exchanged(me, r, scale));
          extents.output_counts.push_back(exchanged(r, me, scale));
        }
        std::byte* in = memory.take(sum(extents.counts) * 4);
        std::byte* out = memory.take(sum(extents.output_counts) * 4);
        extents.inputs = {in};
        extents.outputs = {out};
        fill(DType::f32, in, sum(extents.counts), [&](int64_t i) { return value_of(me, i); });
        group->run(make_list_call(Kind::all_to_all, DType::f32, extents));
        int64_t at = 0;
        for (int64_t r = 0; r < n; ++r) {
          int64_t start = 0;
          for (int64_t s = 0; s < me; ++s) start += exchanged(r, s, scale);
          const int64_t count = exchanged(r, me, scale);
          ASSERT_EQ(
              first_difference(DType::f32, out + at * 4, count, [&](int64_t i) { return value_of(r, start + i); }), -1)
              << "from rank " << r << " to " << me << " of " << n << ", scale " << scale;
          at += count;
        }
      }
    }
  });
}

TEST_P(Uneven, CallsWithARoot) {
  run_alone_or_on_threads(GetParam(), [](const std::shared_ptr<Group>& group) {
    const int64_t n = group->size();
    const int64_t me = group->rank();
    for (const bool in_arena : {true, false}) {
      if (in_arena && n == 1) continue;
      for (const int64_t count : {0, 1, 37, 4097, 150'001}) {
        for (const int64_t root : {int64_t{0}, n - 1}) {
          const std::string row = fmt::format("{} elements, root {}, rank {} of {}, {}", count, root, me, n,
                                              in_arena ? "arena" : "ordinary memory");
          Memory memory(*group, in_arena, (2 * n + 4) * (count * 4 + 64));
          std::byte* small = memory.take(count * 4);
          std::byte* wide = memory.take(count * 4 * n);
          const auto input = [&](int64_t i) { return value_of(me, i); };

          fill(DType::f32, small, count, input);
          group->run(make_call(Kind::reduce, DType::f32, count, nullptr, small, root));
          ASSERT_EQ(first_difference(DType::f32, small, count,
                                     [&](int64_t i) { return me == root ? reduced(ReduceOp::sum, n, i) : input(i); }),
                    -1)
              << "reduce " << row;

          fill(DType::f32, small, count, input);
          fill(DType::f32, wide, count * n, [](int64_t) { return 99; });
          group->run(make_call(Kind::gather, DType::f32, count, small, me == root ? wide : nullptr, root));
          ASSERT_EQ(first_difference(DType::f32, wide, count * n,
                                     [&](int64_t i) { return me == root ? value_of(i / count, i % count) : 99; }),
                    -1)
              << "gather " << row;

          fill(DType::f32, wide, count * n, input);
          group->run(make_call(Kind::scatter, DType::f32, count, me == root ? wide : nullptr, small, root));
          ASSERT_EQ(
              first_difference(DType::f32, small, count, [&](int64_t i) { return value_of(root, me * count + i); }), -1)
              << "scatter " << row;
        }
      }
    }
  });
}

TEST_P(Uneven, AverageAndFactor) {
  run_alone_or_on_threads(GetParam(), [](const std::shared_ptr<Group>& group) {
    const int64_t n = group->size();
    for (const bool in_arena : {true, false}) {
      if (in_arena && n == 1) continue;
      for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
        for (const int64_t count : {1, 5000}) {
          Memory memory(*group, in_arena, count * 16 + 256);
          std::byte* data = memory.take(count * size_of(dtype));
          // n times a whole number on every rank: the average is exact.
          fill(dtype, data, count, [&](int64_t i) { return (i % 7 + group->rank()) * 2; });
          group->run(make_call(Kind::all_reduce, dtype, count, data, data, 0, ReduceOp::avg));
          EXPECT_EQ(first_difference(dtype, data, count, [&](int64_t i) { return 2 * (i % 7) + n - 1; }), -1);
          fill(dtype, data, count, [&](int64_t i) { return value_of(group->rank(), i) * 2; });
          group->run(make_call(Kind::all_reduce, dtype, count, data, data, 0, {ReduceOp::sum, 0.5}));
          EXPECT_EQ(first_difference(dtype, data, count, [&](int64_t i) { return reduced(ReduceOp::sum, n, i); }), -1);
        }
      }
    }
    int64_t whole = 4;
    EXPECT_THROW(group->post(make_call(Kind::all_reduce, DType::i64, 1, &whole, &whole, 0, ReduceOp::avg)), InputError);
    EXPECT_THROW(group->post(make_call(Kind::all_reduce, DType::i64, 1, &whole, &whole, 0, {ReduceOp::sum, 2})),
                 InputError);
    float real = 4;
    EXPECT_THROW(group->post(make_call(Kind::all_reduce, DType::f32, 1, &real, &real, 0, {ReduceOp::max, 2})),
                 InputError);
  });
}

// ---- what differs is told, with both sides

TEST(UnevenMismatch, IsAnErrorOnEveryRankThatShowsBothLists) {
  struct Case {
    const char* name;
    std::vector<std::string> words;
    std::function<Call(int64_t, std::byte*)> call;
  };
  const auto extents = [](std::byte* m, std::vector<int64_t> counts, std::vector<int64_t> output_counts = {}) {
    Extents e;
    e.inputs = {m};
    e.outputs = {m + (64 << 10)};
    e.counts = std::move(counts);
    e.output_counts = std::move(output_counts);
    return e;
  };
  const auto list = [](std::byte* m, std::vector<int64_t> counts) {
    Extents e;
    for (size_t t = 0; t < counts.size(); ++t) {
      e.inputs.push_back(m + (t << 14));
      e.outputs.push_back(m + (t << 14));
    }
    e.counts = std::move(counts);
    return e;
  };
  const std::vector<Case> cases = {
      {"all_gather counts",
       {"all_gather(F32 x 12, uneven) of counts [4, 8]", "all_gather(F32 x 12, uneven) of counts [8, 4]"},
       [&](int64_t r, std::byte* m) {
         return make_list_call(Kind::all_gather, DType::f32,
                               extents(m, r == 0 ? std::vector<int64_t>{4, 8} : std::vector<int64_t>{8, 4}));
       }},
      {"lists",
       {"all_reduce(sum, F32 x 12 in 2 tensors) of counts [4, 8]",
        "all_reduce(sum, F32 x 12 in 2 tensors) of counts [6, 6]"},
       [&](int64_t r, std::byte* m) {
         return make_list_call(Kind::all_reduce, DType::f32,
                               list(m, r == 0 ? std::vector<int64_t>{4, 8} : std::vector<int64_t>{6, 6}));
       }},
      {"lists of other lengths",
       {"in 2 tensors", "in 3 tensors"},
       [&](int64_t r, std::byte* m) {
         return make_list_call(Kind::all_reduce, DType::f32,
                               list(m, r == 0 ? std::vector<int64_t>{4, 8} : std::vector<int64_t>{4, 4, 4}));
       }},
      {"exchange",
       {"rank 0 on", "gives 3 elements to rank 1", "expects 2 from it", "to each rank [1, 3], from each rank [1, 2]"},
       [&](int64_t r, std::byte* m) {
         return make_list_call(Kind::all_to_all, DType::f32,
                               r == 0 ? extents(m, {1, 3}, {1, 2}) : extents(m, {2, 5}, {2, 5}));
       }},
      {"factor",
       {"times 0.5", "all_reduce(sum, F32 x 8)"},
       [&](int64_t r, std::byte* m) {
         return make_call(Kind::all_reduce, DType::f32, 8, m, m, 0, {ReduceOp::sum, r == 0 ? 0.5 : 1});
       }},
      {"root of a reduce",
       {"reduce(sum, F32 x 8, root 0)", "reduce(sum, F32 x 8, root 1)"},
       [&](int64_t r, std::byte* m) { return make_call(Kind::reduce, DType::f32, 8, nullptr, m, r); }},
  };
  for (const Case& row : cases) {
    const auto errors = run_ranks(2, [&](const std::shared_ptr<Group>& group) {
      std::vector<std::byte> memory(256 << 10);
      group->run(row.call(group->rank(), memory.data()));
      group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
    });
    for (const std::string& error : errors) {
      for (const std::string& word : row.words)
        EXPECT_NE(error.find(word), std::string::npos) << row.name << ": no \"" << word << "\" in: " << error;
    }
  }
}

TEST(UnevenMismatch, CallsThatCannotBeRightAreRefusedBeforeAnyPeerSeesThem) {
  expect_no_errors(run_ranks(2, [](const std::shared_ptr<Group>& group) {
    float x[16] = {};
    Extents none;
    EXPECT_THROW(group->post(make_list_call(Kind::all_reduce, DType::f32, none)), InputError);
    Extents negative{{x}, {x + 8}, {4, -4}, {}};
    EXPECT_THROW(group->post(make_list_call(Kind::all_gather, DType::f32, negative)), InputError);
    Extents three{{x}, {x + 8}, {1, 1, 1}, {}};
    EXPECT_THROW(group->post(make_list_call(Kind::all_gather, DType::f32, three)), InputError);
    Extents one_sided{{x}, {x + 8}, {1, 1}, {}};
    EXPECT_THROW(group->post(make_list_call(Kind::all_to_all, DType::f32, one_sided)), InputError);
    Extents overlapping{{x}, {x + 1}, {4, 4}, {}};
    EXPECT_THROW(group->post(make_list_call(Kind::all_gather, DType::f32, overlapping)), InputError);
    EXPECT_THROW(group->post(make_call(Kind::gather, DType::f32, 1, x, x + 8, 2)), InputError);
  }));
}

TEST(CheckLevels, ShapesAreComparedWhenAsked) {
  for (const CheckLevel level : {CheckLevel::calls, CheckLevel::shapes}) {
    const auto errors = run_ranks(
        2,
        [&](const std::shared_ptr<Group>& group) {
          float x[6] = {};
          Call call = make_call(Kind::all_reduce, DType::f32, 6, x, x);
          call.shape = group->rank() == 0 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{3, 2};
          group->run(std::move(call));
        },
        std::chrono::seconds(60), level);
    for (const std::string& error : errors) {
      if (level == CheckLevel::calls) {
        EXPECT_EQ(error, "");
      } else {
        EXPECT_NE(error.find("of shape [2, 3]"), std::string::npos) << error;
        EXPECT_NE(error.find("of shape [3, 2]"), std::string::npos) << error;
      }
    }
  }
}

TEST(CheckLevels, ANanIsToldOnEveryRankWithItsOrigin) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    const auto errors = run_ranks(
        3,
        [&](const std::shared_ptr<Group>& group) {
          std::vector<std::byte> data(64 * 8);
          if (group->rank() == 1) {  // all bits of an exponent, and one of the mantissa
            std::memset(data.data() + 40 * size_of(dtype), 0x7f, static_cast<size_t>(size_of(dtype)));
            if (dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64) {
              std::memset(data.data() + 40 * size_of(dtype), 0xff, static_cast<size_t>(size_of(dtype)));
            }
          }
          group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
          group->run(make_call(Kind::all_reduce, dtype, 64, data.data(), data.data()));
        },
        std::chrono::seconds(60), CheckLevel::all);
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("rank 1 on"), std::string::npos) << name_of(dtype) << ": " << error;
      EXPECT_NE(error.find("holds NaN"), std::string::npos) << name_of(dtype) << ": " << error;
    }
  }
}

}  // namespace
}  // namespace trireme::comm
