// The caching allocator: sizes, reuse, threads, and that it notices a damaged block.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "memory/caching_allocator.h"
#include "memory/process_memory.h"
#include "memory/size_class.h"

namespace trireme::memory {
namespace {

TEST(SizeClass, IsTheSmallestThatHolds) {
  for (size_t bytes = 1; bytes < 10000; ++bytes) {
    const int index = class_of(bytes);
    EXPECT_GE(size_of_class(index), bytes);
    if (index > 0) {
      EXPECT_LT(size_of_class(index - 1), bytes) << bytes;
    }
  }
  for (const size_t bytes : {size_t{1} << 20, (size_t{1} << 20) + 1, size_t{3} << 30, (size_t{1} << 40) - 5}) {
    const int index = class_of(bytes);
    EXPECT_GE(size_of_class(index), bytes);
    EXPECT_LE(size_of_class(index), bytes + bytes / 4 + 64);
    EXPECT_LT(index, kClasses);
  }
}

class Allocator : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_caching_allocator(); }
};

TEST_F(Allocator, GivesAlignedMemoryThatHoldsWhatIsWritten) {
  EXPECT_TRUE(caching_allocator_installed());
  for (const int64_t bytes : {0, 1, 63, 64, 65, 4096, 1 << 20, (1 << 21) + 7, 50 << 20}) {
    const at::Tensor tensor = at::empty({bytes}, at::kByte);
    EXPECT_EQ(reinterpret_cast<size_t>(tensor.data_ptr()) % 64, 0u) << bytes;
    tensor.fill_(171);
    EXPECT_EQ(tensor.to(at::kLong).sum().item<int64_t>(), 171 * bytes);
  }
}

TEST_F(Allocator, AStepAfterWarmUpAsksTheSystemForNothing) {
  const auto step = [] {
    std::vector<at::Tensor> tensors;
    for (int i = 1; i < 40; ++i) tensors.push_back(at::ones({i * 37, 1 + i * 53}));
    return tensors;
  };
  for (int i = 0; i < 3; ++i) step();
  const AllocatorStatistics before = allocator_statistics();
  for (int i = 0; i < 20; ++i) step();
  const AllocatorStatistics after = allocator_statistics();
  EXPECT_EQ(after.system_calls, before.system_calls);
  EXPECT_EQ(after.system_bytes, before.system_bytes);
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_GE(after.allocations, before.allocations + 20 * 39);
}

TEST_F(Allocator, CountsLiveAndPeakAndGivesBackWhatIsFree) {
  release_cached();
  reset_peak();
  const int64_t before = allocator_statistics().live_bytes;
  {
    const at::Tensor tensor = at::empty({30 << 20}, at::kByte);
    EXPECT_GE(allocator_statistics().live_bytes, before + (30 << 20));
    EXPECT_LE(allocator_statistics().live_bytes, before + (40 << 20));
  }
  EXPECT_EQ(allocator_statistics().live_bytes, before);
  EXPECT_GE(allocator_statistics().peak_live_bytes, before + (30 << 20));
  EXPECT_GE(release_cached(), 30 << 20);
}

TEST_F(Allocator, TakesLittleMoreThanIsAskedFor) {
  for (const int64_t bytes :
       {int64_t{1} << 20, int64_t{2} << 20, int64_t{4} << 20, int64_t{64} << 20, (int64_t{4} << 20) + 1,
        (int64_t{5} << 20) + 1, int64_t{41} << 20, (int64_t{1} << 20) - 5}) {
    release_cached();
    const int64_t before = allocator_statistics().system_bytes;
    const at::Tensor tensor = at::empty({bytes}, at::kByte);
    const auto taken = static_cast<double>(allocator_statistics().system_bytes - before);
    const bool power_of_two = (bytes & (bytes - 1)) == 0;
    EXPECT_LE(taken, static_cast<double>(bytes) * (power_of_two ? 1 : 1.25) + 8192) << bytes;
    std::memset(tensor.data_ptr(), 1, static_cast<size_t>(bytes));
  }
}

TEST_F(Allocator, BlocksMayBeFreedByOtherThreads) {
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::vector<at::Tensor>> made(kThreads);
  const auto run = [](auto body) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back(body, t);
    for (std::thread& thread : threads) thread.join();
  };
  run([&](int t) {
    for (int i = 0; i < kRounds; ++i) {
      at::Tensor tensor = at::empty({1 + (i * 977 + t) % 5000}, at::kInt);
      std::memset(tensor.data_ptr(), t, tensor.nbytes());
      made[static_cast<size_t>(t)].push_back(std::move(tensor));
      if (i % 3 == 0) made[static_cast<size_t>(t)].erase(made[static_cast<size_t>(t)].begin());
    }
  });
  // Nobody's memory was given to somebody else.
  for (int t = 0; t < kThreads; ++t) {
    for (const at::Tensor& tensor : made[static_cast<size_t>(t)]) {
      const auto* bytes = static_cast<const char*>(tensor.data_ptr());
      for (size_t i = 0; i < tensor.nbytes(); i += 61) ASSERT_EQ(bytes[i], t);
    }
  }
  run([&](int t) { made[static_cast<size_t>((t + 1) % kThreads)].clear(); });
}

TEST_F(Allocator, EndsTheProgramWhenABlocksHeaderWasOverwritten) {
  EXPECT_DEATH(
      {
        at::Tensor tensor = at::empty({100}, at::kByte);
        std::memset(static_cast<char*>(tensor.data_ptr()) - 64, 0, 64);
        tensor.reset();
      },
      "damaged");
}

TEST(ProcessMemory, CountsWhatIsTouched) {
  const std::vector<char> touched(256 << 20, 1);
  EXPECT_GE(peak_resident_bytes(), 256 << 20);
}

}  // namespace
}  // namespace trireme::memory
