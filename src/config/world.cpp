#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>

#include "base/error.h"
#include "config/config.h"
#include "describe/divisors.h"

namespace trireme::config {
namespace {

/// Sets parallel.data from the world, or checks that it agrees with it. Returns the data ranks.
int64_t resolve_data_ranks(ParallelConfig& parallel, int64_t world) {
  const int64_t others = parallel.tensor * parallel.context * parallel.pipeline;
  const std::string product = fmt::format("parallel.tensor {} x parallel.context {} x parallel.pipeline {}",
                                          parallel.tensor, parallel.context, parallel.pipeline);
  if (world % others != 0) {
    throw_input("{} workers cannot be divided by {} = {}; {} workers can", world, product, others,
                describe::either(describe::nearest_multiples(others, world)));
  }
  if (parallel.data == -1) parallel.data = world / others;
  if (parallel.data * others != world) {
    throw_input(
        "parallel.data {} x {} = {}, and there {} {} worker{}; set parallel.data = {} (or -1), or start {} (--workers "
        "{})",
        parallel.data, product, parallel.data * others, world == 1 ? "is" : "are", world, world == 1 ? "" : "s",
        world / others, parallel.data * others, parallel.data * others);
  }
  return parallel.data;
}

using Faults = std::vector<std::string>;

/// Sets parallel.shard_size, or checks that the data ranks can be divided by it.
void resolve_shard_size(ParallelConfig& parallel, Faults& faults) {
  if (parallel.shard_size == -1) parallel.shard_size = parallel.shard == Shard::none ? 1 : parallel.data;
  if (parallel.data % parallel.shard_size == 0) return;
  faults.push_back(fmt::format("parallel.shard_size = {}: {} data ranks cannot be divided into copies of {}; {} works",
                               parallel.shard_size, parallel.data, parallel.shard_size,
                               describe::either(describe::nearest_divisors(parallel.data, parallel.shard_size))));
}

// A second shard lies within a copy, and what is quantised goes between the ranks of one. Where a copy is divided by no
// more ranks than share a second shard, they are neighbours all: the same as true.
void resolve_exchanges_of_a_copy(Config& config, Faults& faults) {
  ParallelConfig& parallel = config.parallel;
  const int64_t size = parallel.shard_size, group = parallel.reshard_after_forward.group;
  if (group >= size) {
    parallel.reshard_after_forward = {};
    config.comm.emulate.second_shard = {};  // of which there is none
  }
  if (group > 0 && group < size && size % group != 0) {
    std::vector<int64_t> works;
    for (int64_t divisor = 2; divisor < size; ++divisor)
      if (size % divisor == 0) works.push_back(divisor);
    faults.push_back(fmt::format(
        "parallel.reshard_after_forward = {}: the {} ranks that divide a copy cannot be divided into such groups of "
        "neighbours; {}true (gather from all of them) and false (keep) work",
        group, size, works.empty() ? "" : fmt::format("{}, ", fmt::join(works, ", "))));
  }
  if (size == 1 && parallel.data > 1 &&
      (parallel.quantize_weights != Quantize::none || parallel.quantize_gradients != Quantize::none))
    faults.push_back(fmt::format(
        "parallel.quantize_weights and parallel.quantize_gradients are for exchanges between the ranks that divide a "
        "copy, and parallel.shard_size = 1 leaves one rank; -1, or another divisor of {}, works",
        parallel.data));
}

// One tree over all micro-batches: each worker's are a subtree.
void check_tree(const Config& config, int64_t ranks, Faults& faults) {
  if (config.run.reproducible != Reproducible::any_workers) return;
  const size_t before = faults.size();
  const auto check = [&](const std::string& what, int64_t value) {
    if (std::has_single_bit(static_cast<uint64_t>(value))) return;
    const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(value)));
    faults.push_back(
        fmt::format("run.reproducible = \"any_workers\" sums in pairs, and {} {} is not a power of two; {} "
                    "or {} are",
                    value, what, below, 2 * below));
  };
  const int64_t micro_batches = config.train.global_batch_size / config.train.micro_batch_size;
  check("data ranks", ranks);
  check("micro-batches a step (train.global_batch_size / train.micro_batch_size)", micro_batches);
  if (faults.size() == before) check("data ranks that divide a copy (parallel.shard_size)", config.parallel.shard_size);
  if (config.batch_ramp.start > 0)
    faults.emplace_back(
        "run.reproducible = \"any_workers\" needs the same number of micro-batches at each step, and batch_ramp.start "
        "makes it grow; batch_ramp.start = 0 goes with it");
}

// Every size on the way up has to be cut into micro-batches on every rank, as the last one has.
void check_ramp(const BatchRampConfig& ramp, int64_t micro, int64_t ranks, Faults& faults) {
  if (ramp.start == 0) return;
  const auto check = [&](std::string_view key, int64_t value) {
    if (value % (micro * ranks) != 0)
      faults.push_back(
          fmt::format("batch_ramp.{} = {} is not a multiple of train.micro_batch_size x data ranks = {} x {}; {} is",
                      key, value, micro, ranks, describe::either(describe::nearest_multiples(micro * ranks, value))));
  };
  check("start", ramp.start);
  check("increment", ramp.increment);
}

// Of whole micro-batches on every rank.
void resolve_batch(TrainConfig& train, int64_t ranks, Faults& faults) {
  const int64_t micro = train.micro_batch_size;
  int64_t& global = train.global_batch_size;
  if (global == -1) global = micro * ranks;
  if (global >= 1 && global % (micro * ranks) == 0) return;
  const std::vector<int64_t> near = describe::nearest_multiples(micro * ranks, global);
  std::string message = fmt::format(
      "train.global_batch_size = {} is not train.micro_batch_size x data ranks x accumulation = {} x {} x n = {} x "
      "n; {} {}",
      global, micro, ranks, micro * ranks, describe::either(near), near.size() == 1 ? "is" : "are");
  if (global > 0 && global % ranks == 0) {
    message += fmt::format("; so is {} with micro batches of {}", global,
                           describe::either(describe::nearest_divisors(global / ranks, micro)));
  } else if (global > 0) {
    message +=
        fmt::format("; {} data ranks divide {}", describe::either(describe::nearest_divisors(global, ranks)), global);
  }
  faults.push_back(std::move(message));
}

}  // namespace

int64_t resolve_world(Config& config, int64_t world) {
  if (world < 1) throw_input("{} workers: at least 1 is needed", world);
  Config resolved = config;
  const int64_t ranks = resolve_data_ranks(resolved.parallel, world);
  Faults faults;
  resolve_shard_size(resolved.parallel, faults);
  if (faults.empty()) resolve_exchanges_of_a_copy(resolved, faults);
  const int64_t micro = resolved.train.micro_batch_size;
  if (micro < 1) {
    faults.push_back(fmt::format("train.micro_batch_size = {}: at least 1 is needed", micro));
    throw InputError(faults);
  }
  const size_t before = faults.size();
  resolve_batch(resolved.train, ranks, faults);
  const bool whole = faults.size() == before;
  const int64_t global = resolved.train.global_batch_size;
  check_ramp(resolved.batch_ramp, micro, ranks, faults);
  if (whole) check_tree(resolved, ranks, faults);
  if (whole && resolved.optimizer.in_backward && global != micro * ranks)
    faults.push_back(fmt::format(
        "optimizer.in_backward = true needs steps of one micro-batch, whose gradients are given up at once, and "
        "train.global_batch_size = {} has {} micro-batches of {} on each of {} data ranks; {} works, or "
        "train.micro_batch_size = {}",
        global, global / (micro * ranks), micro, ranks, micro * ranks, global / ranks));
  if (!faults.empty()) throw InputError(faults);
  config = std::move(resolved);
  return config.train.global_batch_size / (micro * ranks);
}

}  // namespace trireme::config
