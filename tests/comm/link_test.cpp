// The emulated link: the ring's cost by hand, and groups on a clock that the test moves, so that nothing here depends
// on how fast the machine is.
#include "comm/link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/shm_group.h"
#include "elements.h"
#include "ranks.h"

namespace trireme::comm {
namespace {

using testing::fill;
using testing::first_difference;
using testing::make_call;
using testing::reduced;
using testing::run_ranks;
using testing::value_of;

// Four ranks. A tensor of 1200 bytes; blocks of at most 300 for gathers and scatters; 900 bytes go to others.
TEST(RingCost, OfEveryOperation) {
  struct Row {
    Kind kind;
    int64_t steps;
    double bytes;
  };
  const std::vector<Row> rows = {
      {Kind::all_reduce, 6, 1800}, {Kind::all_gather, 3, 900}, {Kind::reduce_scatter, 3, 900},
      {Kind::gather, 3, 900},      {Kind::scatter, 3, 900},    {Kind::broadcast, 3, 1200},
      {Kind::reduce, 3, 1200},     {Kind::all_to_all, 3, 900}, {Kind::barrier, 6, 0},
      {Kind::send, 1, 1200},       {Kind::recv, 1, 1200},
  };
  for (const Row& row : rows) {
    const WireCost cost = ring_cost(row.kind, 4, 1200, 300, 900);
    EXPECT_EQ(cost.steps, row.steps) << name_of(row.kind);
    EXPECT_EQ(cost.bytes, row.bytes) << name_of(row.kind);
    const WireCost alone = ring_cost(row.kind, 1, 1200, 300, 900);
    EXPECT_EQ(alone.steps, 0) << name_of(row.kind);
    EXPECT_EQ(alone.bytes, 0) << name_of(row.kind);
  }
}

TEST(RingCost, InTime) {
  EXPECT_EQ(transfer_nanoseconds({2, 5}, {6, 1800}), 6 * 5000 + 900);
  EXPECT_EQ(transfer_nanoseconds({0, 5}, {6, 1800}), 6 * 5000) << "no limit of the bandwidth";
  EXPECT_EQ(transfer_nanoseconds({3, 0}, {1, 10}), 4) << "rounded up";
}

TEST(EmulatedLink, ServesOneOperationAfterAnother) {
  EmulatedLink link({1, 0});
  EXPECT_EQ(link.leave(100, {1, 50}), 150);
  EXPECT_EQ(link.leave(120, {1, 50}), 200) << "waits for the link";
  EXPECT_EQ(link.leave(1000, {1, 50}), 1050) << "the link was free";
  EXPECT_EQ(link.busy_nanoseconds(), 150);
}

struct Emulation {
  std::shared_ptr<std::atomic<int64_t>> clock = std::make_shared<std::atomic<int64_t>>(1000);
  std::shared_ptr<GroupSettings> settings = std::make_shared<GroupSettings>();

  Emulation() {
    settings->links["data"] = {1, 10};  // 1 byte a nanosecond, 10,000 ns a step
    settings->clock = [clock = clock] { return clock->load(); };
  }
};

void expect_no_errors(const std::vector<std::string>& errors) {
  for (size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

void barrier(std::atomic<int>& came, int ranks) {
  const int target = (came.fetch_add(1) / ranks + 1) * ranks;
  while (came < target) std::this_thread::yield();
}

// Two ranks, all_reduce of 8000 bytes: 2 steps and 8000 bytes, 28,000 ns, from the moment when the later one posts.
TEST(Emulated, TheTransferGoesOnWhileRanksCompute) {
  Emulation emulation;
  std::atomic<int> came{0};
  expect_no_errors(run_ranks(
      2,
      [&](const std::shared_ptr<ShmGroup>& group) {
        for (const bool in_arena : {true, false}) {
          std::vector<std::byte> own(8000);
          std::byte* data = in_arena ? group->shared_alloc("data", 16'384) + group->rank() * 8192 : own.data();
          const int64_t count = 2000;
          fill(DType::f32, data, count, [&](int64_t i) { return value_of(group->rank(), i); });
          const int64_t begin = emulation.clock->load();
          barrier(came, 2);
          std::vector<std::shared_ptr<Operation>> work;
          if (group->rank() == 0)
            work.push_back(group->post(make_call(Kind::all_reduce, DType::f32, count, data, data)));
          barrier(came, 2);
          if (group->rank() == 1) {
            emulation.clock->store(begin + 500);  // the later arrival counts
            work.push_back(group->post(make_call(Kind::all_reduce, DType::f32, count, data, data)));
          }
          barrier(came, 2);
          EXPECT_FALSE(group->test(*work[0]));
          barrier(came, 2);
          if (group->rank() == 0) emulation.clock->store(begin + 500 + 27'999);
          barrier(came, 2);
          EXPECT_FALSE(group->test(*work[0])) << "a nanosecond is left";
          barrier(came, 2);
          if (group->rank() == 0) emulation.clock->store(begin + 500 + 28'000);
          barrier(came, 2);
          group->wait(*work[0]);
          EXPECT_EQ(first_difference(DType::f32, data, count, [&](int64_t i) { return reduced(ReduceOp::sum, 2, i); }),
                    -1);
          barrier(came, 2);
        }
        EXPECT_EQ(group->link().busy_nanoseconds(), 56'000);
      },
      std::chrono::seconds(60), emulation.settings));
}

// The same work with a clock that runs only while somebody waits: the time that passes is the links', and no more.
TEST(Emulated, OperationsQueueAndEveryKindTakesItsTime) {
  Emulation emulation;
  std::atomic<bool> over{false};
  std::thread ticker([&] {
    while (!over) {
      emulation.clock->fetch_add(1000);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  expect_no_errors(run_ranks(
      3,
      [&](const std::shared_ptr<ShmGroup>& group) {
        const int64_t me = group->rank();
        std::vector<float> wide(3000, 1), other(3000), small(1000, 1), result(1000);
        const int64_t begin = emulation.clock->load();
        std::vector<std::shared_ptr<Operation>> work;
        const auto post = [&](Call call) { work.push_back(group->post(std::move(call))); };
        post(make_call(Kind::all_reduce, DType::f32, 1000, small.data(), small.data()));
        post(make_call(Kind::all_gather, DType::f32, 1000, small.data(), wide.data()));
        post(make_call(Kind::reduce_scatter, DType::f32, 1000, wide.data(), result.data()));
        post(make_call(Kind::all_to_all, DType::f32, 1000, wide.data(), other.data()));
        post(make_call(Kind::broadcast, DType::f32, 1000, nullptr, result.data(), 1));
        post(make_call(Kind::reduce, DType::f32, 1000, nullptr, result.data(), 1));
        post(make_call(Kind::gather, DType::f32, 1000, result.data(), me == 0 ? wide.data() : nullptr));
        post(make_call(Kind::scatter, DType::f32, 1000, me == 0 ? wide.data() : nullptr, small.data()));
        post(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
        for (const auto& operation : work) group->wait(*operation);
        // Steps: 4 + 7 x 2 + 4. Bytes: 4/3 of 4000 rounded up, 5 x 8000, 2 x 4000.
        const int64_t expected = 22 * 10'000 + 5'334 + 5 * 8'000 + 2 * 4'000;
        EXPECT_EQ(group->link().busy_nanoseconds(), expected);
        EXPECT_GE(emulation.clock->load() - begin, expected);
      },
      std::chrono::seconds(60), emulation.settings));
  over = true;
  ticker.join();
}

TEST(Emulated, AMessageArrivesWhenItsLinkHasBroughtIt) {
  Emulation emulation;
  std::atomic<int> came{0};
  expect_no_errors(run_ranks(
      2,
      [&](const std::shared_ptr<ShmGroup>& group) {
        float x = static_cast<float>(group->rank() + 5);
        float y = 0;
        if (group->rank() == 0) {
          group->run(make_call(Kind::send, DType::f32, 1, &x, nullptr, 1));
          group->run(make_call(Kind::send, DType::f32, 1, &x, nullptr, 1));
          barrier(came, 2);
          barrier(came, 2);
          return;
        }
        barrier(came, 2);  // both were sent at 1000
        const auto first = group->post(make_call(Kind::recv, DType::f32, 1, nullptr, &y, 0));
        const auto second = group->post(make_call(Kind::recv, DType::f32, 1, nullptr, &x, 0));
        EXPECT_FALSE(group->test(*first));
        emulation.clock->store(1000 + 10'004);
        EXPECT_TRUE(group->test(*first));
        EXPECT_EQ(y, 5);
        EXPECT_FALSE(group->test(*second));
        emulation.clock->store(1000 + 2 * 10'004);
        EXPECT_TRUE(group->test(*second));
        barrier(came, 2);
      },
      std::chrono::seconds(60), emulation.settings));
}

// A link that is slower than the deadline is not a late peer.
TEST(Emulated, ASlowLinkIsNoFailure) {
  const auto settings = std::make_shared<GroupSettings>();
  settings->links["data"] = {0, 500'000};  // two steps of half a second
  expect_no_errors(run_ranks(
      2,
      [](const std::shared_ptr<ShmGroup>& group) {
        group->run(make_call(Kind::barrier, DType::u8, 0, nullptr, nullptr));
      },
      std::chrono::milliseconds(300), settings));
}

}  // namespace
}  // namespace trireme::comm
