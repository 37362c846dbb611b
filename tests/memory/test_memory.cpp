// The caching allocator: sizes, reuse, threads, and that it notices a damaged block; the free parts that it serves
// from.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/core/CPUAllocator.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "memory/caching_allocator.h"
#include "memory/extents.h"
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
  for (int index = 0; index < 40; ++index) EXPECT_EQ(size_of_class(index) % 64, 0u) << "blocks stay aligned";
}

// Extents beside a map of every byte of a small range.
class ExtentsTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 4096;
  enum class Byte : char { bare, backed, taken };

  char* at(size_t offset) { return memory_.data() + offset; }
  size_t offset(const char* pointer) const { return static_cast<size_t>(pointer - memory_.data()); }

  size_t longest(auto fits) const {
    size_t best = 0, run = 0;
    for (const Byte byte : bytes_) best = std::max(best, run = fits(byte) ? run + 1 : 0);
    return best;
  }

  // Takes and checks against the map.
  char* take(size_t size) {
    const size_t backed = longest([](Byte b) { return b == Byte::backed; });
    const size_t bare = longest([](Byte b) { return b == Byte::bare; });
    const auto taken = extents_.take(size);
    if (!taken) {
      EXPECT_LT(std::max(backed, bare), size) << "a free part would have held it";
      return nullptr;
    }
    size_t was_bare = 0;
    for (size_t i = offset(taken->at); i < offset(taken->at) + size; ++i) {
      EXPECT_NE(bytes_[i], Byte::taken) << i;
      was_bare += bytes_[i] == Byte::bare;
      bytes_[i] = Byte::taken;
    }
    EXPECT_EQ(taken->bare, was_bare);
    if (backed >= size) {
      EXPECT_EQ(taken->bare, 0u) << "a backed part would have held it";
    }
    return taken->at;
  }

  void give(char* from, size_t size) {
    extents_.give(from, size);
    std::fill_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset(from)), size, Byte::backed);
  }

  void check_backed() const {
    EXPECT_EQ(extents_.backed_bytes(), static_cast<size_t>(std::count(bytes_.begin(), bytes_.end(), Byte::backed)));
  }

  std::vector<char> memory_ = std::vector<char>(kBytes);
  std::vector<Byte> bytes_ = std::vector<Byte>(kBytes, Byte::bare);
  Extents extents_;
};

TEST_F(ExtentsTest, ServesAsAMapOfEveryByteSays) {
  extents_.add(at(0), kBytes);
  std::mt19937 random(7);
  std::vector<std::pair<char*, size_t>> held;
  int refused = 0, released = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto pick = [&](size_t below) { return static_cast<size_t>(random() % below); };
    if (pick(500) == 0) {
      extents_.release([&](char* from, size_t size) {
        ++released;
        for (size_t j = offset(from); j < offset(from) + size; ++j) {
          EXPECT_EQ(bytes_[j], Byte::backed);
          bytes_[j] = Byte::bare;
        }
      });
      EXPECT_EQ(extents_.backed_bytes(), 0u);
    } else if (held.empty() || pick(2) == 0) {
      const size_t size = 1 + pick(pick(4) == 0 ? 600 : 40);
      if (char* block = take(size))
        held.emplace_back(block, size);
      else
        ++refused;
    } else {
      std::swap(held[pick(held.size())], held.back());
      give(held.back().first, held.back().second);
      held.pop_back();
    }
    check_backed();
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(released, 50);
  for (const auto& [block, size] : held) give(block, size);
  EXPECT_NE(take(longest([](Byte b) { return b == Byte::backed; })), nullptr);
}

TEST_F(ExtentsTest, TakesTheTightestAndThenAcrossIntoBareMemory) {
  extents_.add(at(0), kBytes);
  char* wide = take(100);
  char* wall = take(10);
  char* narrow = take(50);
  char* last = take(10);
  give(wide, 100);
  give(narrow, 50);
  EXPECT_EQ(take(40), narrow);
  EXPECT_EQ(take(60), wide);
  give(last, 10);  // bare memory is behind it
  EXPECT_EQ(take(200), narrow + 40) << "the ten bytes left of the narrow one and the last one are one part";
  EXPECT_NE(wall, nullptr);
}

TEST_F(ExtentsTest, RangesThatDoNotTouchStayApart) {
  extents_.add(at(0), 100);
  extents_.add(at(101), 100);
  EXPECT_EQ(take(100), at(0));
  EXPECT_FALSE(extents_.take(101).has_value());
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

TEST_F(Allocator, SmallBlocksAreAlignedToo) {
  std::vector<at::Tensor> held;
  for (int64_t bytes = 1; bytes < 3000; bytes += 7) {
    held.push_back(at::empty({bytes}, at::kByte));
    EXPECT_EQ(reinterpret_cast<size_t>(held.back().data_ptr()) % 64, 0u) << bytes;
  }
}

TEST_F(Allocator, TakesLittleMoreThanIsAskedFor) {
  for (const int64_t bytes :
       {int64_t{1} << 20, int64_t{2} << 20, int64_t{4} << 20, int64_t{64} << 20, (int64_t{4} << 20) + 1,
        (int64_t{5} << 20) + 1, int64_t{41} << 20, (int64_t{1} << 20) - 5, int64_t{64} << 10}) {
    release_cached();
    const int64_t before = allocator_statistics().system_bytes;
    const at::Tensor tensor = at::empty({bytes}, at::kByte);
    EXPECT_LE(allocator_statistics().system_bytes - before, bytes + 64 + 4095) << bytes;
    std::memset(tensor.data_ptr(), 1, static_cast<size_t>(bytes));
  }
}

TEST_F(Allocator, WhatSomeSizesLeaveFreeServesOthers) {
  release_cached();
  std::vector<at::Tensor> pieces;
  for (int i = 0; i < 30; ++i) pieces.push_back(at::empty({(1 << 20) + i * 4096}, at::kByte));
  const int64_t taken = allocator_statistics().system_bytes;
  pieces.clear();
  const at::Tensor whole = at::empty({30 << 20}, at::kByte);
  EXPECT_EQ(allocator_statistics().system_bytes, taken);
}

// Where addresses are limited before the first block is made; 0: memory comes, and too much of it is refused.
int allocate_with_few_addresses() {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = rlim_t{32} << 30;
  if (::setrlimit(RLIMIT_AS, &limit) != 0) return 3;
  install_caching_allocator();
  try {
    const at::Tensor many = at::ones({100 << 20}, at::kByte), few = at::ones({10}, at::kByte);
    if (many.sum().item<int64_t>() != 100 << 20 || few.sum().item<int64_t>() != 10) return 2;
  } catch (const OutOfMemory&) {
    return 4;
  }
  try {
    at::empty({int64_t{40} << 30}, at::kByte);
    return 1;
  } catch (const OutOfMemory&) {
    return 0;
  }
}

TEST(AllocatorWithFewAddresses, GrowsInSegments) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes more addresses than any limit";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own
  EXPECT_EXIT(std::exit(allocate_with_few_addresses()), testing::ExitedWithCode(0), "");
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

TEST_F(Allocator, CountsByThePurposeOfTheThreadThatAllocates) {
  const auto live = [](Purpose purpose) { return of(allocator_statistics().live, purpose); };
  const int64_t moments = live(Purpose::moments), gradients = live(Purpose::gradients), other = live(Purpose::other);
  at::Tensor outer, inner, elsewhere;
  {
    const PurposeScope scope(Purpose::moments);
    outer = at::empty({1001}, at::kByte);
    {
      const PurposeScope nested(Purpose::gradients);
      inner = at::empty({int64_t{3} << 20}, at::kByte);
      std::thread([&] { elsewhere = at::empty({77}, at::kByte); }).join();
    }
    EXPECT_EQ(current_purpose(), Purpose::moments);
  }
  EXPECT_EQ(current_purpose(), Purpose::other);
  // What was asked for, not what the block has.
  EXPECT_EQ(live(Purpose::moments), moments + 1001);
  EXPECT_EQ(live(Purpose::gradients), gradients + (3 << 20));
  EXPECT_EQ(live(Purpose::other), other + 77);
  // A block is given back to the purpose that it was taken for, whoever frees it, and may then serve another.
  const void* block = inner.data_ptr();
  std::thread([&] { inner.reset(); }).join();
  EXPECT_EQ(live(Purpose::gradients), gradients);
  const PurposeScope scope(Purpose::loss);
  const int64_t loss = live(Purpose::loss);
  const at::Tensor again = at::empty({int64_t{3} << 20}, at::kByte);
  EXPECT_EQ(again.data_ptr(), block);
  EXPECT_EQ(live(Purpose::loss), loss + (3 << 20));
}

TEST_F(Allocator, ThePeakIsOneMomentOfAllPurposes) {
  reset_peak();
  const PurposeBytes before = allocator_statistics().live;
  const auto hold = [](Purpose purpose, int64_t mebibytes) {
    const PurposeScope scope(purpose);
    return at::empty({mebibytes << 20}, at::kByte);
  };
  at::Tensor weights = hold(Purpose::weights, 4), activations = hold(Purpose::activations, 16);
  activations.reset();
  const at::Tensor workspace = hold(Purpose::workspace, 8);
  const PurposeBytes at_peak = allocator_statistics().at_peak;
  EXPECT_EQ(of(at_peak, Purpose::weights), of(before, Purpose::weights) + (4 << 20));
  EXPECT_EQ(of(at_peak, Purpose::activations), of(before, Purpose::activations) + (16 << 20));
  EXPECT_EQ(of(at_peak, Purpose::workspace), of(before, Purpose::workspace)) << "came later, at a lower total";
  reset_peak();
  EXPECT_EQ(allocator_statistics().at_peak, allocator_statistics().live);
}

TEST_F(Allocator, MemoryThatIsHeldElsewhereCounts) {
  const AllocatorStatistics before = allocator_statistics();
  {
    HeldElsewhere held(Purpose::gradients, 1 << 30), moved(std::move(held)), assigned;
    assigned = std::move(moved);
    EXPECT_EQ(of(allocator_statistics().live, Purpose::gradients), of(before.live, Purpose::gradients) + (1 << 30));
    EXPECT_GE(allocator_statistics().peak_live_bytes, before.live_bytes + (1 << 30));
    EXPECT_EQ(allocator_statistics().system_bytes, before.system_bytes);
  }
  EXPECT_EQ(allocator_statistics().live, before.live);
  EXPECT_EQ(allocator_statistics().live_bytes, before.live_bytes);
}

TEST_F(Allocator, AnErrorOfMemoryTellsWhatIsHeld) {
  const PurposeScope scope(Purpose::moments);
  const at::Tensor held = at::empty({int64_t{5} << 20}, at::kByte);
  const auto text = [](int64_t bytes) -> std::string {
    try {
      const PurposeScope nested(Purpose::activations);
      at::empty({bytes}, at::kByte);
    } catch (const OutOfMemory& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(text(int64_t{1} << 49),
              testing::AllOf(testing::HasSubstr("536870912.0 MiB more were asked for activations"),
                             testing::HasSubstr("moments ")));
  EXPECT_THAT(text(int64_t{1} << 60), testing::HasSubstr("1152921504606846976 bytes"));
  EXPECT_EQ(at::empty({100}).numel(), 100) << "the allocator goes on";
}

TEST_F(Allocator, MoreThanTheMachineHasIsRefusedNotKilledFor) {
  int overcommit = -1;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  if (overcommit != 0) GTEST_SKIP() << "this system refuses by another rule";
  struct sysinfo machine {};
  ASSERT_EQ(::sysinfo(&machine), 0);
  const auto all = static_cast<int64_t>((machine.totalram + machine.totalswap) * machine.mem_unit);
  EXPECT_THROW(at::empty({2 * all}, at::kByte), OutOfMemory);
}

TEST_F(Allocator, EndsTheProgramWhenABlockIsFreedTwice) {
  c10::Allocator* allocator = c10::GetCPUAllocator();
  for (const size_t bytes : {size_t{100}, size_t{1} << 20}) {
    EXPECT_DEATH(
        {
          void* block = allocator->raw_allocate(bytes);
          allocator->raw_deallocate(block);
          allocator->raw_deallocate(block);
        },
        "freed it twice");
  }
}

TEST(Purposes, InWordsTheLargestFirst) {
  PurposeBytes bytes{};
  EXPECT_EQ(to_text(bytes), "0.0 MiB");
  of(bytes, Purpose::weights) = 3 << 19;
  of(bytes, Purpose::moments) = 6 << 20;
  EXPECT_EQ(to_text(bytes), "7.5 MiB: moments 6.0 MiB, weights 1.5 MiB");
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
