// How fast the loader hands out tokens: bench_loader FOLDER SEQ_LEN MICRO_BATCH_SIZE STEPS. Prints one line of JSON.
// loader.py runs it beside numpy's memmap, which is what small trainers use.
#include <chrono>
#include <cstdio>
#include <string>

#include "base/error.h"
#include "data/loader.h"

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  if (argc != 5) {
    std::fputs("usage: bench_loader FOLDER SEQ_LEN MICRO_BATCH_SIZE STEPS\n", stderr);
    return 2;
  }
  try {
    const auto start = Clock::now();
    trireme::data::LoaderOptions options;
    options.seq_len = std::stoll(argv[2]);
    options.micro_batch_size = std::stoll(argv[3]);
    const int64_t steps = std::stoll(argv[4]);
    trireme::data::Loader loader(trireme::data::Dataset::open(argv[1]), options);
    loader.next_step();
    const std::chrono::duration<double> first = Clock::now() - start;
    const auto begin = Clock::now();
    int64_t tokens = 0;
    for (int64_t step = 0; step < steps; ++step) {
      for (const auto& batch : loader.next_step()) tokens += batch.valid_tokens;
    }
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    fmt::print("{{\"open_and_first_step_s\": {:.6f}, \"tokens_per_second\": {:.0f}}}\n", first.count(),
               static_cast<double>(tokens) / seconds.count());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
