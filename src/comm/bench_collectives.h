// How fast the collectives are, and whether their results are right: a table in the form of nccl-tests.
//
// algbw = bytes / time, where bytes is the size of the larger buffer. busbw is algbw times what each rank must move at
// least: 2(n-1)/n for all_reduce; (n-1)/n for all_gather, reduce_scatter, gather, scatter and all_to_all; 1 for
// broadcast, reduce and send_recv (nccl-tests, doc/PERFORMANCE.md). Times are the median over eleven batches of the
// mean of a batch on its slowest rank. Before it is measured each operation runs once on whole numbers that are small
// enough to be exact in any order, and every element is compared.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace trireme::comm {

/// all_reduce, reduce, broadcast, all_gather, gather, reduce_scatter, scatter, all_to_all, send_recv.
const std::vector<std::string>& benched_collectives();

struct BenchOptions {
  std::vector<std::string> collectives = benched_collectives();
  int64_t min_bytes = 1 << 10;
  int64_t max_bytes = 64 << 20;
  int64_t factor = 4;             ///< each size is the last times this
  double seconds_per_size = 0.2;  ///< about how long one size is measured
  bool in_arena = true;           ///< buffers of shared_empty(); otherwise ordinary tensors, which are staged
  at::ScalarType dtype = at::kFloat;
};

struct BenchResult {
  std::string collective;
  bool in_place = false;
  int64_t bytes = 0;
  int64_t repeats = 0;
  double microseconds = 0;
  double algorithm_gb_per_second = 0;
  double bus_gb_per_second = 0;
  int64_t wrong = 0;  ///< elements of all ranks that differ from what they should be
};

/// Throws one InputError: names that are not known, sizes that make no sense.
void check_bench(const BenchOptions& options);

/// Collective: all ranks call it with the same options; all get the same results. Checks them first.
std::vector<BenchResult> bench_collectives(Communicator& communicator, const BenchOptions& options);

/// The results as a table, a line each, with a head.
std::string format_bench(const std::vector<BenchResult>& results, const Communicator& communicator,
                         const BenchOptions& options);
nlohmann::json bench_json(const std::vector<BenchResult>& results, const Communicator& communicator,
                          const BenchOptions& options);

}  // namespace trireme::comm
