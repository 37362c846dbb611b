// Recording of scopes. Catches: work that is computed while nobody asks, a forward scope inside a backward one that is
// called forward, scopes that straddle a recording and end up in the wrong one, events of one thread in another's.
#include "base/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace trireme::profile {
namespace {

const auto no_work = [] { return Work{}; };

std::vector<std::string> names(const Thread& thread) {
  std::vector<std::string> all;
  for (const Event& event : thread.events) all.push_back(event.name);
  return all;
}

TEST(Profile, OffItAsksForNothing) {
  const Scope scope(Phase::forward, "a", []() -> Work {
    ADD_FAILURE() << "the work is computed although nothing is recorded";
    return {};
  });
  EXPECT_FALSE(recording());
  EXPECT_TRUE(stop().empty());
}

TEST(Profile, KeepsWorkAndNesting) {
  start();
  {
    const Scope step(Kind::step, Phase::other, "step", 7);
    const Scope product(Phase::forward, "product", [] {
      return Work{.of = "blocks.0.w", .shape = {2, 3, 4}, .flops = 48, .bytes = 100};
    });
  }
  const std::vector<Thread> threads = stop();
  ASSERT_EQ(threads.size(), 1U);
  ASSERT_THAT(names(threads[0]), testing::ElementsAre("product", "step"));
  const Event &product = threads[0].events[0], &step = threads[0].events[1];
  EXPECT_EQ(product.of, "blocks.0.w");
  EXPECT_EQ(product.shape, (Shape{2, 3, 4}));
  EXPECT_EQ(product.flops, 48);
  EXPECT_EQ(product.bytes, 100);
  EXPECT_EQ(step.kind, Kind::step);
  EXPECT_EQ(step.shape[0], 7);
  EXPECT_LE(step.begin_ns, product.begin_ns);
  EXPECT_LE(product.begin_ns, product.end_ns);
  EXPECT_LE(product.end_ns, step.end_ns);
}

TEST(Profile, ForwardWithinBackwardIsRecomputation) {
  start();
  {
    const Scope backward(Kind::section, Phase::backward, "backward");
    { const Scope again(Phase::forward, "norm", no_work); }
    {
      const Scope outer(Phase::forward, "attention", no_work);
      const Scope inner(Phase::forward, "rotary", no_work);
    }
    { const Scope gradient(Phase::backward, "norm", no_work); }
  }
  { const Scope forward(Phase::forward, "norm", no_work); }
  const std::vector<Thread> threads = stop();
  ASSERT_EQ(threads.size(), 1U);
  std::vector<Phase> phases;
  for (const Event& event : threads[0].events) phases.push_back(event.phase);
  EXPECT_THAT(phases, testing::ElementsAre(Phase::recompute, Phase::recompute, Phase::recompute, Phase::backward,
                                           Phase::backward, Phase::forward));
}

TEST(Profile, AScopeBelongsToTheRecordingThatItIsWithin) {
  {
    const Scope before(Phase::forward, "begun before", no_work);
    start();
  }
  {
    const Scope over(Phase::forward, "ends after", no_work);
    const Scope inner(Phase::forward, "straddles", no_work);
    EXPECT_TRUE(stop().empty());
    start();
    const Scope whole(Phase::forward, "whole", no_work);
  }
  const std::vector<Thread> threads = stop();
  ASSERT_EQ(threads.size(), 1U);
  EXPECT_THAT(names(threads[0]), testing::ElementsAre("whole"));
}

TEST(Profile, ThreadsHaveEventsOfTheirOwn) {
  start();
  std::thread([] {
    name_this_thread("other");
    const Scope scope(Phase::data, "there", no_work);
  }).join();
  { const Scope scope(Phase::forward, "here", no_work); }
  const std::vector<Thread> threads = stop();
  ASSERT_EQ(threads.size(), 2U);
  EXPECT_NE(threads[0].id, threads[1].id);
  for (const Thread& thread : threads)
    EXPECT_THAT(names(thread), testing::ElementsAre(thread.name == "other" ? "there" : "here"));
  // Of a thread that is gone nothing stays.
  start();
  EXPECT_TRUE(stop().empty());
}

TEST(Profile, ManyThreadsWhileItStartsAndStops) {
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!done) {
        const Scope outer(Phase::data, "outer", no_work);
        const Scope inner(Phase::data, "inner", no_work);
      }
    });
  for (int i = 0; i < 200; ++i) {
    start();
    std::this_thread::yield();
    for (const Thread& thread : stop())
      for (const Event& event : thread.events) ASSERT_LE(event.begin_ns, event.end_ns);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace trireme::profile
