// A race on purpose: two ranks count in the same word of the arena without any order. The thread sanitizer must report
// it; if it does not, its silence on the other tests means nothing.
#include <thread>

#include "comm/shm_group.h"

int main() {
  using namespace trireme::comm;
  const auto arena = Arena::create(2);
  const auto body = [&](int64_t rank) {
    GroupOptions options;
    options.rank = rank;
    ShmGroup group(arena, options);
    auto* counter = reinterpret_cast<int64_t*>(group.shared_alloc("counter", 8));
    // Both are here before either counts: otherwise one may be through before the other begins, and the reference count
    // of the arena, which the end of a group releases and the start of one acquires, would order them.
    Call barrier;
    barrier.kind = Kind::barrier;
    group.run(barrier);
    for (int i = 0; i < 10'000; ++i) ++*counter;
  };
  std::thread other(body, 1);
  body(0);
  other.join();
}
