// What the contenders of collectives.py share: commands come as lines `OPERATION BYTES REPEATS`, from a file of each
// rank (a fifo, in which a rank sleeps between its turns); rank 0 answers each with the time of a call in microseconds
// (the median over short batches, of the slowest rank), and with how many elements were wrong.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

struct Backend {
  virtual ~Backend() = default;
  /// Buffers of at least so many floats on each rank.
  virtual void prepare(int64_t floats) = 0;
  virtual float* input() = 0;   ///< all_reduce: input and output; all_gather: one part; reduce_scatter: all parts
  virtual float* output() = 0;  ///< all_gather: all parts; reduce_scatter: one part
  virtual void run(const std::string& operation, int64_t floats) = 0;
  virtual double slowest(double seconds) = 0;  ///< the maximum over the ranks
  virtual void barrier() = 0;
};

// Whole numbers: their sums are exact.
inline float value_of(int64_t rank, int64_t i) { return static_cast<float>((i * 3 + rank * 5) % 13); }

inline int64_t count_wrong(Backend& backend, const std::string& operation, int64_t floats, int rank, int ranks) {
  const int64_t part = floats / ranks;
  const int64_t given = operation == "all_gather" ? part : floats;
  for (int64_t i = 0; i < given; ++i) backend.input()[i] = value_of(rank, i);
  backend.run(operation, floats);
  int64_t wrong = 0;
  const auto sum = [&](int64_t i) {
    float total = 0;
    for (int r = 0; r < ranks; ++r) total += value_of(r, i);
    return total;
  };
  if (operation == "all_reduce") {
    for (int64_t i = 0; i < floats; ++i) wrong += backend.input()[i] != sum(i);
  } else if (operation == "all_gather") {
    for (int64_t i = 0; i < part * ranks; ++i) wrong += backend.output()[i] != value_of(i / part, i % part);
  } else {
    for (int64_t i = 0; i < part; ++i) wrong += backend.output()[i] != sum(rank * part + i);
  }
  for (int64_t i = 0; i < floats; ++i) backend.input()[i] = 0;  // sums of sums would grow without end
  return wrong;
}

inline void serve(Backend& backend, const std::string& commands, int rank, int ranks) {
  std::ifstream in(commands);
  backend.prepare(16 << 20);
  std::string operation;
  int64_t bytes = 0, repeats = 0;
  while (in >> operation >> bytes >> repeats) {
    const int64_t floats = bytes / 4;
    const double wrong = backend.slowest(static_cast<double>(count_wrong(backend, operation, floats, rank, ranks)));
    backend.run(operation, floats);
    backend.barrier();
    // Short batches: another process that takes a processor spoils a few of them, not the median.
    const int64_t batches = std::min<int64_t>(repeats, 15), batch = repeats / batches;
    std::vector<double> times;
    for (int64_t b = 0; b < batches; ++b) {
      const auto start = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < batch; ++i) backend.run(operation, floats);
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                      static_cast<double>(batch));
    }
    std::nth_element(times.begin(), times.begin() + batches / 2, times.end());
    const double slowest = backend.slowest(times[static_cast<size_t>(batches / 2)]);
    if (rank == 0) std::cout << slowest * 1e6 << " " << wrong << std::endl;
  }
}
