#include "comm/bench_collectives.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

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
  if (name == "broadcast" || name == "reduce" || name == "send_recv") return 1;
  return (n - 1) / n;
}

// Element i of rank r's input: whole numbers so small that the sum of all ranks stays exact in bf16, which has all of
// them up to 256.
at::Tensor values(int64_t rank, int64_t ranks, int64_t count, at::ScalarType dtype) {
  const int64_t modulus = std::clamp<int64_t>(256 / ranks, 2, 13);
  return ((at::arange(count, at::kInt) * 3 + rank * 5) % modulus).to(dtype);
}

at::Tensor sum_of_values(int64_t ranks, int64_t count, at::ScalarType dtype) {
  at::Tensor total = values(0, ranks, count, at::kInt);
  for (int64_t r = 1; r < ranks; ++r) total += values(r, ranks, count, at::kInt);
  return total.to(dtype);
}

// One operation at one size. Buffers are cut from `whole` and `other`, which hold the largest size.
struct Subject {
  std::string name;
  bool in_place = false;
  std::function<void()> fill;
  std::function<void()> run;
  std::function<at::Tensor()> result;    // what to compare on this rank; undefined: nothing
  std::function<at::Tensor()> expected;  // likewise
};

std::vector<Subject> subjects(Communicator& c, const std::string& name, const at::Tensor& whole,
                              const at::Tensor& other) {
  const int64_t n = c.size(), me = c.rank(), part = whole.numel() / n;
  const auto dtype = whole.scalar_type();
  const at::Tensor piece = other.narrow(0, 0, part), own = whole.narrow(0, me * part, part);
  const bool root = me == 0;
  const auto none = [] { return at::Tensor(); };
  const auto all = [=](int64_t rank) { return values(rank, n, part * n, dtype); };
  const auto small = [=](int64_t rank) { return values(rank, n, part, dtype); };
  const auto gathered = [=] {
    std::vector<at::Tensor> parts;
    for (int64_t r = 0; r < n; ++r) parts.push_back(small(r));
    return at::cat(parts);
  };
  const auto summed = [=] { return sum_of_values(n, part * n, dtype); };
  const auto fill_whole = [=] { at::Tensor(whole).copy_(all(me)); };
  const auto fill_piece = [=] { at::Tensor(piece).copy_(small(me)); };
  const auto block = [=](const at::Tensor& tensor) { return tensor.narrow(0, me * part, part); };
  if (name == "all_reduce") {
    return {{name, false, fill_whole, [=, &c] { c.all_reduce_into(other, whole); }, [=] { return other; }, summed},
            {name, true, fill_whole, [=, &c] { c.all_reduce(whole); }, [=] { return whole; }, summed}};
  }
  if (name == "reduce") {
    return {{name, true, fill_whole, [=, &c] { c.reduce(whole, 0); }, [=] { return whole; },
             [=] { return root ? summed() : all(me); }}};
  }
  if (name == "broadcast") {
    return {
        {name, true, fill_whole, [=, &c] { c.broadcast(whole, 0); }, [=] { return whole; }, [=] { return all(0); }}};
  }
  if (name == "all_gather") {
    return {{name, false, fill_piece, [=, &c] { c.all_gather_into(whole, piece); }, [=] { return whole; }, gathered},
            {name, true, [=] { at::Tensor(own).copy_(small(me)); }, [=, &c] { c.all_gather_into(whole, own); },
             [=] { return whole; }, gathered}};
  }
  if (name == "gather") {
    return {{name, false, fill_piece, [=, &c] { c.gather(root ? whole : at::Tensor(), piece, 0); },
             root ? std::function<at::Tensor()>([=] { return whole; }) : none,
             root ? std::function<at::Tensor()>(gathered) : none}};
  }
  if (name == "reduce_scatter") {
    return {{name, false, fill_whole, [=, &c] { c.reduce_scatter_into(piece, whole); }, [=] { return piece; },
             [=] { return block(summed()); }},
            {name, true, fill_whole, [=, &c] { c.reduce_scatter_into(own, whole); }, [=] { return own; },
             [=] { return block(summed()); }}};
  }
  if (name == "scatter") {
    return {{name, false, fill_whole, [=, &c] { c.scatter(piece, root ? whole : at::Tensor(), 0); },
             [=] { return piece; }, [=] { return block(all(0)); }}};
  }
  if (name == "all_to_all") {
    return {{name, false, fill_whole, [=, &c] { c.all_to_all_into(other, whole); }, [=] { return other; },
             [=] {
               std::vector<at::Tensor> parts;
               for (int64_t r = 0; r < n; ++r) parts.push_back(block(all(r)));
               return at::cat(parts);
             }}};
  }
  // send_recv: each sends to the next and receives from the one before, as nccl-tests' sendrecv does.
  const int64_t next = (me + 1) % n, last = (me + n - 1) % n;
  return {{name, false, fill_whole,
           [=, &c] {
             if (n > 1) c.send_recv({Message::send(whole, next), Message::recv(other, last)});
           },
           n > 1 ? std::function<at::Tensor()>([=] { return other; }) : none,
           n > 1 ? std::function<at::Tensor()>([=] { return all(last); }) : none}};
}

int64_t count_wrong(const Subject& subject) {
  subject.fill();
  subject.run();
  const at::Tensor result = subject.result();
  return result.defined() ? result.ne(subject.expected()).sum().item<int64_t>() : 0;
}

constexpr int64_t batches = 11;

// So many calls as fill `seconds`, the same number on all ranks. The fastest of a few calls is the measure: one that
// was interrupted by another process would leave too few repeats.
int64_t repeats_for(Communicator& communicator, const std::function<void()>& run, double seconds) {
  double fastest = seconds_of(run, 1);
  for (int i = 0; i < 4; ++i) fastest = std::min(fastest, seconds_of(run, 1));
  const double guess = std::max(communicator.all_reduce_scalar(fastest, ReduceOp::max), 1e-7);
  return std::clamp<int64_t>(static_cast<int64_t>(seconds / guess), 1, 100'000);
}

// The median over batches of the time of a call on the slowest rank.
double median_time(Communicator& communicator, const std::function<void()>& run, int64_t repeats) {
  at::Tensor times = at::empty({batches}, at::kDouble);
  auto* time = times.data_ptr<double>();
  communicator.barrier();
  for (int64_t b = 0; b < batches; ++b) time[b] = seconds_of(run, repeats) / static_cast<double>(repeats);
  communicator.all_reduce(times, ReduceOp::max);
  std::sort(time, time + batches);
  return time[batches / 2];
}

}  // namespace

const std::vector<std::string>& benched_collectives() {
  static const std::vector<std::string> names = {"all_reduce",     "reduce",  "broadcast",  "all_gather", "gather",
                                                 "reduce_scatter", "scatter", "all_to_all", "send_recv"};
  return names;
}

void check_bench(const BenchOptions& options) {
  const std::vector<std::string>& known = benched_collectives();
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
  at::Tensor first = make("bench/first"), second = make("bench/second");

  std::vector<BenchResult> results;
  for (const std::string& name : options.collectives) {
    for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
      const int64_t part = std::max<int64_t>(bytes / element / n, 1);
      for (const Subject& subject :
           subjects(communicator, name, first.narrow(0, 0, part * n), second.narrow(0, 0, part * n))) {
        const int64_t wrong = communicator.all_reduce_scalar(count_wrong(subject));
        // Sums of sums would grow without end.
        first.zero_();
        second.zero_();
        const auto repeats = repeats_for(communicator, subject.run, options.seconds_per_size / batches);
        const double time = median_time(communicator, subject.run, repeats);
        const int64_t moved = part * n * element;
        const double speed = static_cast<double>(moved) / time * 1e-9;
        results.push_back({name, subject.in_place, moved, repeats * batches, time * 1e6, speed,
                           speed * bus_factor(name, static_cast<double>(n)), wrong});
      }
    }
  }
  return results;
}

std::string format_bench(const std::vector<BenchResult>& results, const Communicator& communicator,
                         const BenchOptions& options) {
  std::string text =
      fmt::format("{} ranks, {}, buffers {}\n{:<16}{:<10}{:>12}{:>10}{:>14}{:>14}{:>14}{:>8}\n", communicator.size(),
                  c10::toString(options.dtype),
                  options.in_arena && communicator.shares_memory() ? "in the shared arena" : "outside an arena",
                  "collective", "in place", "bytes", "repeats", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "wrong");
  for (const BenchResult& r : results) {
    text += fmt::format("{:<16}{:<10}{:>12}{:>10}{:>14.2f}{:>14.2f}{:>14.2f}{:>8}\n", r.collective,
                        r.in_place ? "yes" : "no", r.bytes, r.repeats, r.microseconds, r.algorithm_gb_per_second,
                        r.bus_gb_per_second, r.wrong);
  }
  return text;
}

nlohmann::json bench_json(const std::vector<BenchResult>& results, const Communicator& communicator,
                          const BenchOptions& options) {
  nlohmann::json list = nlohmann::json::array();
  for (const BenchResult& r : results) {
    list.push_back({{"collective", r.collective},
                    {"in_place", r.in_place},
                    {"bytes", r.bytes},
                    {"repeats", r.repeats},
                    {"time_us", r.microseconds},
                    {"algbw_gb_per_s", r.algorithm_gb_per_second},
                    {"busbw_gb_per_s", r.bus_gb_per_second},
                    {"wrong", r.wrong}});
  }
  return {{"ranks", communicator.size()},
          {"dtype", c10::toString(options.dtype)},
          {"memory", options.in_arena ? "arena" : "ordinary"},
          {"results", list}};
}

}  // namespace trireme::comm
