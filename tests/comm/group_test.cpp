// Collectives of the core, over ranks as threads: results compared exactly, for every way a call can take.
#include "comm/shm_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/generation.h"
#include "elements.h"
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

// 0, 1, a prime, 4N+1 beyond the inlined size, and several staged pieces.
const std::vector<int64_t> small_counts = {0, 1, 37, 4097};
constexpr int64_t large_count = 300'007;

struct Shape {
  DType dtype;
  int64_t count;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const DType dtype : {DType::u8, DType::i32, DType::i64, DType::f16, DType::bf16, DType::f32, DType::f64}) {
    for (const int64_t count : small_counts) all.push_back({dtype, count});
  }
  all.push_back({DType::f32, large_count});
  all.push_back({DType::bf16, 70'001});
  return all;
}

// Buffers of one rank, in the arena or outside.
struct Buffers {
  std::byte *wide_in, *wide_out, *in, *out;
  std::vector<std::byte> own;

  Buffers(ShmGroup& group, bool in_arena, int64_t bytes) {
    bytes = (bytes + 63) / 64 * 64;  // elements lie at multiples of their size
    const int64_t n = group.size();
    const int64_t total = bytes * (2 * n + 2);
    std::byte* memory = nullptr;
    if (in_arena) {
      memory = group.shared_alloc("buffers", total * n) + total * group.rank();
    } else {
      own.resize(static_cast<size_t>(total));
      memory = own.data();
    }
    wide_in = memory;
    wide_out = memory + bytes * n;
    in = memory + bytes * 2 * n;
    out = in + bytes;
  }
};

class Collectives : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(2, 3, 4, 5, 8));

TEST_P(Collectives, GiveExactResults) {
  expect_no_errors(run_ranks(GetParam(), [](const std::shared_ptr<ShmGroup>& group) {
    const int64_t n = group->size();
    const int64_t me = group->rank();
    for (const bool in_arena : {true, false}) {
      Buffers b(*group, in_arena, large_count * 4);
      for (const auto& [dtype, count] : shapes()) {
        const int64_t stride = count * size_of(dtype);
        const std::string row =
            fmt::format("{} x {} {} rank {} of {}", name_of(dtype), count, in_arena ? "arena" : "staged", me, n);
        const auto input = [&](int64_t i) { return value_of(me, i); };
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
          fill(dtype, b.in, count, input);
          group->run(make_call(Kind::all_reduce, dtype, count, b.in, b.in, 0, op));
          ASSERT_EQ(first_difference(dtype, b.in, count, [&](int64_t i) { return reduced(op, n, i); }), -1)
              << "all_reduce " << name_of(op) << " " << row;

          fill(dtype, b.wide_in, count * n, input);
          group->run(make_call(Kind::reduce_scatter, dtype, count, b.wide_in, b.out, 0, op));
          ASSERT_EQ(first_difference(dtype, b.out, count, [&](int64_t i) { return reduced(op, n, me * count + i); }),
                    -1)
              << "reduce_scatter " << name_of(op) << " " << row;
        }
        fill(dtype, b.in, count, input);
        group->run(make_call(Kind::all_gather, dtype, count, b.in, b.wide_out));
        ASSERT_EQ(
            first_difference(dtype, b.wide_out, count * n, [&](int64_t i) { return value_of(i / count, i % count); }),
            -1)
            << "all_gather " << row;

        fill(dtype, b.wide_out + me * stride, count, input);
        group->run(make_call(Kind::all_gather, dtype, count, b.wide_out + me * stride, b.wide_out));
        ASSERT_EQ(
            first_difference(dtype, b.wide_out, count * n, [&](int64_t i) { return value_of(i / count, i % count); }),
            -1)
            << "all_gather in place " << row;

        fill(dtype, b.wide_in, count * n, input);
        group->run(make_call(Kind::reduce_scatter, dtype, count, b.wide_in, b.wide_in + me * stride));
        ASSERT_EQ(first_difference(dtype, b.wide_in + me * stride, count,
                                   [&](int64_t i) { return reduced(ReduceOp::sum, n, me * count + i); }),
                  -1)
            << "reduce_scatter in place " << row;

        fill(dtype, b.wide_in, count * n, input);
        group->run(make_call(Kind::all_to_all, dtype, count, b.wide_in, b.wide_out));
        ASSERT_EQ(first_difference(dtype, b.wide_out, count * n,
                                   [&](int64_t i) { return value_of(i / count, me * count + i % count); }),
                  -1)
            << "all_to_all " << row;

        for (const int64_t root : {int64_t{0}, n - 1}) {
          fill(dtype, b.out, count, input);
          group->run(make_call(Kind::broadcast, dtype, count, nullptr, b.out, root));
          ASSERT_EQ(first_difference(dtype, b.out, count, [&](int64_t i) { return value_of(root, i); }), -1)
              << "broadcast from " << root << " " << row;
        }

        // Round the ring: everyone sends before it receives.
        fill(dtype, b.in, count, input);
        const int64_t next = (me + 1) % n;
        const int64_t last = (me + n - 1) % n;
        const auto sent = group->post(make_call(Kind::send, dtype, count, b.in, nullptr, next));
        group->run(make_call(Kind::recv, dtype, count, nullptr, b.out, last));
        group->wait(*sent);
        ASSERT_EQ(first_difference(dtype, b.out, count, [&](int64_t i) { return value_of(last, i); }), -1)
            << "send, recv " << row;
      }
    }
    group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
  }));
}

TEST_P(Collectives, MixOfArenaAndOrdinaryBuffersIsStagedByAll) {
  expect_no_errors(run_ranks(GetParam(), [](const std::shared_ptr<ShmGroup>& group) {
    Buffers b(*group, group->rank() != 0, large_count * 4);
    if (group->rank() == 0) Buffers(*group, true, large_count * 4);
    fill(DType::f32, b.in, large_count, [&](int64_t i) { return value_of(group->rank(), i); });
    group->run(make_call(Kind::all_reduce, DType::f32, large_count, b.in, b.in));
    EXPECT_EQ(first_difference(DType::f32, b.in, large_count,
                               [&](int64_t i) { return reduced(ReduceOp::sum, group->size(), i); }),
              -1);
  }));
}

// Posted in one order, waited for in another, with more calls under way than the ring holds, and messages in between.
TEST_P(Collectives, AsynchronousCallsMayBeWaitedForInAnyOrder) {
  expect_no_errors(run_ranks(GetParam(), [](const std::shared_ptr<ShmGroup>& group) {
    const int64_t n = group->size();
    const int64_t calls = 150;
    const auto count_of = [](int64_t c) {
      return c % 3 == 0 ? int64_t{11} : c % 3 == 1 ? int64_t{5000} : int64_t{3000};
    };
    std::byte* arena = group->shared_alloc("async", n * calls * 20'000) + group->rank() * calls * 20'000;
    std::vector<std::vector<std::byte>> own(static_cast<size_t>(calls));
    std::vector<std::shared_ptr<Operation>> pending;
    std::vector<std::byte*> data;
    for (int64_t c = 0; c < calls; ++c) {
      own[static_cast<size_t>(c)].resize(20'000);
      data.push_back(c % 3 == 2 ? own[static_cast<size_t>(c)].data() : arena + c * 20'000);
      fill(DType::f32, data.back(), count_of(c), [&](int64_t i) { return value_of(group->rank(), i + c); });
      pending.push_back(group->post(make_call(Kind::all_reduce, DType::f32, count_of(c), data.back(), data.back())));
      if (c % 7 == group->rank()) group->progress();
    }
    int32_t token = static_cast<int32_t>(group->rank());
    int32_t from = -1;
    const auto sent = group->post(make_call(Kind::send, DType::i32, 1, &token, nullptr, (group->rank() + 1) % n));
    const auto received =
        group->post(make_call(Kind::recv, DType::i32, 1, nullptr, &from, (group->rank() + n - 1) % n));
    for (int64_t k = 0; k < calls; ++k) {
      const int64_t c = (k * 77 + group->rank() * 13) % calls;
      group->wait(*pending[static_cast<size_t>(c)]);
      ASSERT_EQ(first_difference(DType::f32, data[static_cast<size_t>(c)], count_of(c),
                                 [&](int64_t i) { return reduced(ReduceOp::sum, n, i + c); }),
                -1)
          << "call " << c;
    }
    group->wait(*received);
    group->wait(*sent);
    EXPECT_EQ(from, (group->rank() + n - 1) % n);
  }));
}

// A call ends for a rank that waits once its peers have posted, even while they compute: what training under
// communication rests on. A hang here is the failure.
TEST(Group, WhatLiesInTheArenaDoesNotNeedThePeersHelp) {
  for (const Kind kind : {Kind::all_reduce, Kind::reduce, Kind::all_gather, Kind::gather, Kind::reduce_scatter,
                          Kind::scatter, Kind::broadcast, Kind::all_to_all}) {
    for (const bool in_place : {true, false}) {
      std::atomic<bool> finished{false};
      expect_no_errors(run_ranks(
          2,
          [&](const std::shared_ptr<ShmGroup>& group) {
            const int64_t count = 100'003, me = group->rank();
            Buffers b(*group, true, count * 4);
            for (std::byte* small : {b.in, b.out})
              fill(DType::f32, small, count, [&](int64_t i) { return value_of(me, i); });
            for (std::byte* wide : {b.wide_in, b.wide_out})
              fill(DType::f32, wide, 2 * count, [&](int64_t i) { return value_of(me, i); });
            std::byte* own = (joins_output(kind) ? b.wide_out : b.wide_in) + me * count * 4;
            const bool in_place_blocks = in_place && (kind == Kind::all_gather || kind == Kind::reduce_scatter);
            const bool whole =
                kind == Kind::reduce || kind == Kind::broadcast || (kind == Kind::all_reduce && in_place);
            const void* input = whole ? nullptr : splits_input(kind) ? b.wide_in : in_place_blocks ? own : b.in;
            std::byte* output = joins_output(kind) ? b.wide_out : in_place_blocks ? own : b.out;
            const auto work = group->post(make_call(kind, DType::f32, count, input, output, 0));
            if (me == 0) {
              group->wait(*work);
              finished = true;
            } else {
              while (!finished) std::this_thread::yield();  // "computes" until rank 0 has the result
              group->wait(*work);
            }
            const auto expected = [&](int64_t i) {
              switch (kind) {
                case Kind::all_reduce:
                  return reduced(ReduceOp::sum, 2, i);
                case Kind::reduce:
                  return me == 0 ? reduced(ReduceOp::sum, 2, i) : value_of(me, i);
                case Kind::reduce_scatter:
                  return reduced(ReduceOp::sum, 2, me * count + i);
                case Kind::scatter:
                  return value_of(0, me * count + i);
                case Kind::broadcast:
                  return value_of(0, i);
                case Kind::all_to_all:
                  return value_of(i / count, me * count + i % count);
                case Kind::all_gather:
                  // In place, a block was filled as a part of the wide buffer.
                  return value_of(i / count, in_place_blocks ? i : i % count);
                default:
                  return me == 0 ? value_of(i / count, i % count) : value_of(me, i);
              }
            };
            EXPECT_EQ(first_difference(DType::f32, output, joins_output(kind) ? 2 * count : count, expected), -1)
                << name_of(kind) << " rank " << me << (in_place ? " in place" : "");
          },
          std::chrono::seconds(20)));
      EXPECT_TRUE(finished) << name_of(kind);
    }
  }
}

TEST(Group, SameLayoutGivesTheSameBits) {
  std::vector<std::vector<float>> results;
  for (const bool in_arena : {true, true, false}) {
    std::vector<float> result(50'001);
    expect_no_errors(run_ranks(3, [&](const std::shared_ptr<ShmGroup>& group) {
      Buffers b(*group, in_arena, 50'001 * 4);
      auto* data = reinterpret_cast<float*>(b.in);
      for (int64_t i = 0; i < 50'001; ++i) data[i] = 1.0F / static_cast<float>(3 + i * 7 % 1009 + group->rank() * 31);
      group->run(make_call(Kind::all_reduce, DType::f32, 50'001, data, data));
      if (group->rank() == 1) std::copy_n(data, 50'001, result.begin());
    }));
    results.push_back(result);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]) << "staged and direct differ";
}

TEST(Group, OfOneRankIsTheSameCodeWithNothingToDo) {
  ShmGroup group("data");
  float x = 3;
  float y = 0;
  group.run(make_call(Kind::all_reduce, DType::f32, 1, &x, &x));
  group.run(make_call(Kind::all_gather, DType::f32, 1, &x, &y));
  group.run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
  group.progress();
  group.abort("nobody listens");
  EXPECT_EQ(x, 3);
  EXPECT_EQ(y, 3);
}

TEST(Group, GenerationsHoldWritersUntilAllHaveRead) {
  expect_no_errors(run_ranks(4, [](const std::shared_ptr<ShmGroup>& group) {
    Generation generation(group, "weights");
    auto* weights = reinterpret_cast<int64_t*>(group->shared_alloc("weights", group->size() * 8));
    for (int64_t step = 1; step <= 200; ++step) {
      generation.begin_write();
      weights[group->rank()] = step * 10 + group->rank();
      generation.end_write();
      generation.begin_read();
      for (int64_t r = 0; r < group->size(); ++r) ASSERT_EQ(weights[r], step * 10 + r) << "step " << step;
      generation.end_read();
    }
    EXPECT_EQ(generation.number(), 200U);
  }));
}

TEST(Group, SubgroupsOfOneArenaDoNotMeet) {
  const auto arena = Arena::create(4);
  std::vector<std::thread> threads;
  std::vector<int64_t> sums(4);
  for (int64_t r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      GroupOptions options;
      options.axis = "shard";
      options.members = r < 2 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{2, 3};
      options.rank = r % 2;
      ShmGroup group(arena, options);
      int64_t value = r + 1;
      for (int i = 0; i < 10; ++i) group.run(make_call(Kind::all_reduce, DType::i64, 1, &value, &value));
      sums[static_cast<size_t>(r)] = value;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sums, (std::vector<int64_t>{3 * 512, 3 * 512, 7 * 512, 7 * 512}));
}

// ---- what must be refused

struct Mismatch {
  const char* name;
  Call first, second;
  std::vector<std::string> words;
};

TEST(Group, CallsThatDifferAreAnErrorOnEveryRankThatShowsBoth) {
  std::vector<std::byte> memory(1 << 20);
  std::byte* m = memory.data();
  const std::vector<Mismatch> rows = {
      {"kind",
       make_call(Kind::all_reduce, DType::f32, 8, m, m),
       make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr),
       {"all_reduce(sum, F32 x 8)", "barrier"}},
      {"count",
       make_call(Kind::all_reduce, DType::f32, 8, m, m),
       make_call(Kind::all_reduce, DType::f32, 9, m, m),
       {"F32 x 8", "F32 x 9"}},
      {"dtype",
       make_call(Kind::all_reduce, DType::f32, 8, m, m),
       make_call(Kind::all_reduce, DType::i32, 8, m, m),
       {"F32 x 8", "I32 x 8"}},
      {"operator",
       make_call(Kind::all_reduce, DType::f32, 8, m, m),
       make_call(Kind::all_reduce, DType::f32, 8, m, m, 0, ReduceOp::max),
       {"sum", "max"}},
      {"root",
       make_call(Kind::broadcast, DType::f32, 8, nullptr, m, 0),
       make_call(Kind::broadcast, DType::f32, 8, nullptr, m, 1),
       {"root 0", "root 1"}},
      {"large and small",
       make_call(Kind::all_reduce, DType::f32, 100'000, m, m),
       make_call(Kind::all_reduce, DType::f32, 8, m, m),
       {"F32 x 100000", "F32 x 8"}},
  };
  for (const Mismatch& row : rows) {
    const auto errors = run_ranks(2, [&](const std::shared_ptr<ShmGroup>& group) {
      group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
      group->run(group->rank() == 0 ? row.first : row.second);
    });
    for (const std::string& error : errors) {
      for (const std::string& word : row.words)
        EXPECT_NE(error.find(word), std::string::npos) << row.name << ": " << error;
      EXPECT_NE(error.find("#2"), std::string::npos) << row.name << ": " << error;
      EXPECT_NE(error.find("axis data"), std::string::npos) << row.name << ": " << error;
    }
  }
}

TEST(Group, MessagesThatDifferAreAnError) {
  std::vector<float> memory(100);
  const auto errors = run_ranks(2, [&](const std::shared_ptr<ShmGroup>& group) {
    std::vector<float> own(100);
    if (group->rank() == 0) {
      group->run(make_call(Kind::send, DType::f32, 10, own.data(), nullptr, 1));
    } else {
      group->run(make_call(Kind::recv, DType::f32, 12, nullptr, own.data(), 0));
    }
  });
  EXPECT_NE(errors[1].find("send(F32 x 10, to 1)"), std::string::npos) << errors[1];
  EXPECT_NE(errors[1].find("recv(F32 x 12, from 0)"), std::string::npos) << errors[1];
}

TEST(Group, AllocationsThatDifferAreAnErrorThatShowsBoth) {
  std::atomic<int> first{0};
  const auto errors = run_ranks(2, [&](const std::shared_ptr<ShmGroup>& group) {
    group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
    if (group->rank() == 1) {
      while (first == 0) std::this_thread::yield();
    }
    group->shared_alloc(group->rank() == 0 ? "gradients" : "weights", 64 + group->rank());
    first = 1;
  });
  EXPECT_EQ(errors[0], "");
  for (const char* word : {"rank 1 asks for \"weights\", 65 bytes", "rank 0 asked for \"gradients\", 64 bytes"}) {
    EXPECT_NE(errors[1].find(word), std::string::npos) << errors[1];
  }
}

TEST(Group, FullArenaAndSharedBufferAndBadCallsAreRefused) {
  const auto errors = run_ranks(2, [&](const std::shared_ptr<ShmGroup>& group) {
    EXPECT_THROW(group->shared_alloc("too much", int64_t{1} << 40), InputError);
    float x[8] = {};
    EXPECT_THROW(group->post(make_call(Kind::broadcast, DType::f32, 8, nullptr, x, 2)), InputError);
    EXPECT_THROW(group->post(make_call(Kind::send, DType::f32, 8, x, nullptr, group->rank())), InputError);
    EXPECT_THROW(group->post(make_call(Kind::all_to_all, DType::f32, 4, x, x)), InputError);
    std::byte* same = group->shared_alloc("same", 1 << 20);
    group->run(make_call(Kind::all_reduce, DType::f32, 1 << 18, same, same));
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("gave the same memory"), std::string::npos) << error;
}

TEST(Group, AbortEndsThePeersWaitAtOnceAndEveryLaterCall) {
  const auto start = Clock::now();
  const auto errors = run_ranks(3, [&](const std::shared_ptr<ShmGroup>& group) {
    if (group->rank() == 1) {
      group->abort("loss is not a number");
      return;
    }
    EXPECT_THROW(group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr)), WorkerError);
    group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
  });
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 5);
  EXPECT_EQ(errors[1], "");
  for (const int r : {0, 2}) {
    EXPECT_NE(errors[static_cast<size_t>(r)].find("rank 1 on"), std::string::npos) << errors[static_cast<size_t>(r)];
    EXPECT_NE(errors[static_cast<size_t>(r)].find("loss is not a number"), std::string::npos)
        << errors[static_cast<size_t>(r)];
  }
}

TEST(Group, DeadlineNamesTheLateRankAndWhereItIs) {
  std::atomic<bool> over{false};
  const auto errors = run_ranks(
      3,
      [&](const std::shared_ptr<ShmGroup>& group) {
        float x[16] = {};
        group->run(make_call(Kind::all_reduce, DType::f32, 16, x, x));
        if (group->rank() == 2) {
          while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        try {
          group->run(make_call(Kind::all_gather, DType::f32, 2, x, x + 8));
        } catch (...) {
          over = true;
          throw;
        }
      },
      std::chrono::milliseconds(300));
  int own = 0;
  for (const int r : {0, 1}) {
    const std::string& error = errors[static_cast<size_t>(r)];
    for (const char* word : {"all_gather(F32 x 2) #2 on axis data", "deadline of 0.3 s", "rank 2 (pid",
                             "alive, but late", "last call was all_reduce(sum, F32 x 16) #1"}) {
      EXPECT_NE(error.find(word), std::string::npos) << word << " in: " << error;
    }
    own += error.find("because another rank failed") == std::string::npos;
  }
  EXPECT_GE(own, 1);
}

// Long before the deadline, and once for each wait.
TEST(Group, ALongWaitIsToldBeforeItsDeadline) {
  ::testing::internal::CaptureStderr();
  std::atomic<bool> over{false};
  const auto errors = run_ranks(
      2,
      [&](const std::shared_ptr<ShmGroup>& group) {
        if (group->rank() == 1) {
          while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        try {
          group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
        } catch (...) {
          over = true;
          throw;
        }
      },
      std::chrono::milliseconds(3000));
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t told = log.find("s for barrier #1 on axis data, until 3.0 s at most: rank 1 (pid");
  EXPECT_NE(told, std::string::npos) << log;
  EXPECT_NE(log.find("it is alive, but late", told), std::string::npos) << log;
  EXPECT_EQ(log.find(" has waited ", told), std::string::npos) << "told twice: " << log;
  EXPECT_NE(errors[0].find("its deadline of 3.0 s is over"), std::string::npos) << errors[0];
}

TEST(Group, FlightRecordHoldsTheLast64Calls) {
  expect_no_errors(run_ranks(2, [](const std::shared_ptr<ShmGroup>& group) {
    int64_t value = 1;
    for (int i = 0; i < 100; ++i) group->run(make_call(Kind::all_reduce, DType::i64, 1, &value, &value));
    const std::string text = group->flight_record();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 64);
    EXPECT_EQ(text.find("#36 "), std::string::npos);
    EXPECT_NE(text.find("#37 on axis data"), std::string::npos) << text;
    EXPECT_NE(text.find("#100 on axis data"), std::string::npos);
  }));
}

}  // namespace
}  // namespace trireme::comm
