#include "comm/bench_collectives.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include <fmt/ranges.h>

#include "base/error.h"

namespace trireme::comm {
namespace {

double seconds_of(const std::function<void()>& body, int64_t repeats) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeats; ++i) body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double bus_factor(const std::string& name, double n) {
  if (name == "all_reduce") return 2 * (n - 1) / n;
  if (name == "broadcast") return 1;
  return (n - 1) / n;
}

}  // namespace

void check_bench(const BenchOptions& options) {
  const std::vector<std::string> known = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"};
  std::vector<std::string> faults;
  for (const std::string& name : options.collectives) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      faults.push_back(fmt::format("no collective {} to measure; there are {}", name, fmt::join(known, ", ")));
  }
  if (options.min_bytes < 1 || options.max_bytes < options.min_bytes || options.factor < 2) {
    faults.push_back(
        fmt::format("sizes from {} to {} bytes, times {}: expected 1 <= from <= to, and a factor of at least 2",
                    options.min_bytes, options.max_bytes, options.factor));
  }
  if (!faults.empty()) throw InputError(std::move(faults));
}

std::vector<BenchResult> bench_collectives(Communicator& communicator, const BenchOptions& options) {
  check_bench(options);
  const int64_t n = communicator.size();
  const auto element = static_cast<int64_t>(c10::elementSize(options.dtype));
  const int64_t largest = (options.max_bytes / element / n + 1) * n;
  const auto make = [&](const char* name) {
    return options.in_arena ? communicator.shared_empty(name, {largest}, options.dtype)
                            : at::zeros({largest}, at::TensorOptions().dtype(options.dtype));
  };
  const at::Tensor first = make("bench/first");
  const at::Tensor second = make("bench/second");

  std::vector<BenchResult> results;
  for (const std::string& name : options.collectives) {
    for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
      const int64_t part = std::max<int64_t>(bytes / element / n, 1);
      const at::Tensor whole = first.narrow(0, 0, part * n);
      const at::Tensor other = second.narrow(0, 0, part * n);
      const at::Tensor piece = second.narrow(0, 0, part);
      const std::function<void()> body = [&] {
        if (name == "all_reduce") communicator.all_reduce(whole);
        if (name == "all_gather") communicator.all_gather_into(whole, piece);
        if (name == "reduce_scatter") communicator.reduce_scatter_into(piece, whole);
        if (name == "broadcast") communicator.broadcast(whole, 0);
        if (name == "all_to_all") communicator.all_to_all_into(other, whole);
      };
      // The first calls touch the pages; all ranks must agree on the number of repeats.
      const double guess = communicator.all_reduce_scalar(seconds_of(body, 3) / 3, ReduceOp::max);
      const auto repeats =
          std::clamp<int64_t>(static_cast<int64_t>(options.seconds_per_size / std::max(guess, 1e-7)), 5, 100'000);
      communicator.barrier();
      const double time =
          communicator.all_reduce_scalar(seconds_of(body, repeats) / static_cast<double>(repeats), ReduceOp::max);
      const int64_t moved = part * n * element;
      const double speed = static_cast<double>(moved) / time * 1e-9;
      results.push_back({name, moved, repeats, time * 1e6, speed, speed * bus_factor(name, static_cast<double>(n))});
    }
  }
  return results;
}

std::string format_bench(const std::vector<BenchResult>& results, const Communicator& communicator,
                         const BenchOptions& options) {
  std::string text =
      fmt::format("{} ranks, {}, buffers {}\n{:<16}{:>14}{:>10}{:>14}{:>14}{:>14}\n", communicator.size(),
                  c10::toString(options.dtype), options.in_arena ? "in the shared arena" : "outside the arena",
                  "collective", "bytes", "repeats", "time (us)", "algbw (GB/s)", "busbw (GB/s)");
  for (const BenchResult& r : results) {
    text += fmt::format("{:<16}{:>14}{:>10}{:>14.2f}{:>14.2f}{:>14.2f}\n", r.collective, r.bytes, r.repeats,
                        r.microseconds, r.algorithm_gb_per_second, r.bus_gb_per_second);
  }
  return text;
}

}  // namespace trireme::comm
