#include "plan/data_exchange.h"

#include <algorithm>

namespace trireme::plan {
namespace {

constexpr double kMaster = 4, kSum = 4;  // bytes of a weight as its owner has it, and of a sum of gradients

double size_of(const Group& ranks) { return static_cast<double>(ranks.size); }

}  // namespace

DataExchange::DataExchange(const Job& job, const Layout& layout, const Network& network)
    : job_(job),
      layout_(layout),
      network_(network),
      memory_(job.accelerator.memory_gbs * 1e9 * job.constants.memory_share) {
  const int64_t shards = shard_ranks(layout), replicas = layout.replicas;
  const bool inner = layout.replicas_innermost;
  dense_ = {shards, layout.tensor * (inner ? replicas : 1)};
  replicas_ = {replicas, layout.tensor * (inner ? 1 : shards)};
  experts_ = {std::max<int64_t>(layout.tensor * layout.context * layout.data / layout.expert, 1), layout.expert};
}

bool DataExchange::gathers_each_pass() const {
  return layout_.shard == Shard::parameters && layout_.pipeline == 1 && dense_.size > 1;
}

bool DataExchange::reduces_each_pass() const {
  return layout_.shard >= Shard::gradients && job_.exchange.reduce_each_pass && dense_.size > 1;
}

std::array<DataExchange::Part, 2> DataExchange::parts(const StageParameters& parameters) const {
  return {Part{dense_, parameters.dense_blocks(), parameters.dense},
          Part{experts_, parameters.experts, parameters.experts}};
}

ExchangeCost DataExchange::gather(double weights, const Group& ranks) const {
  if (ranks.size <= 1 || weights <= 0) return {};
  const auto whole = static_cast<double>(job_.element_bytes());
  const double packed = layout_.shard == Shard::parameters ? job_.exchange.gathered_bytes : 0;
  if (packed <= 0) return {network_.seconds(Collective::all_gather, whole * weights, ranks), 0};
  // Each packs what it owns, and makes all of it from what arrives.
  const double moved = weights * ((kMaster + packed) / size_of(ranks) + packed + whole);
  return {network_.seconds(Collective::all_gather, packed * weights, ranks), moved / memory_};
}

ExchangeCost DataExchange::reduce(double gradients, const Group& ranks) const {
  if (ranks.size <= 1 || gradients <= 0) return {};
  const double packed = job_.exchange.reduced_bytes;
  if (packed <= 0) {
    const double bytes = static_cast<double>(job_.gradient_bytes) * gradients;
    return {network_.seconds(Collective::reduce_scatter, bytes, ranks), 0};
  }
  // Each packs what is others', with what the last rounding lost, and adds what it gets to its own.
  const double residual = job_.exchange.error_feedback ? 2 * kSum : 0, others = 1 - 1 / size_of(ranks);
  const double moved = gradients * (others * (kSum + residual + packed + packed) + 2 * kSum / size_of(ranks));
  return {network_.direct_all_to_all(packed * gradients, ranks), moved / memory_};
}

ExchangeCost DataExchange::add_up_copies(double gradients) const {
  if (replicas_.size <= 1) return {};
  const double packed = dense_.size > 1 ? job_.exchange.reduced_bytes : 0;
  if (packed <= 0) {
    const double bytes = static_cast<double>(job_.gradient_bytes) * gradients;
    return {network_.seconds(Collective::all_reduce, bytes, replicas_), 0};
  }
  // Each sums a part, rounds that again, and all make their shards' sums from the parts, once backward is over.
  const double copies = size_of(replicas_), residual = job_.exchange.error_feedback ? 2 * kSum : 0;
  const double pack = kSum + residual + packed, others = 1 - 1 / copies;
  const double moved = gradients * (others * (pack + packed) + kSum / copies + pack / copies + packed + kSum);
  const double gathered = network_.seconds(Collective::all_gather, packed * gradients, replicas_);
  return {network_.direct_all_to_all(packed * gradients, replicas_), moved / memory_, gathered};
}

ExchangeCost DataExchange::gather_all(const StageParameters& parameters) const {
  ExchangeCost cost;
  for (const Part& part : parts(parameters)) cost += gather(part.all, part.ranks);
  return cost;
}

ExchangeCost DataExchange::gather_again(const StageParameters& parameters) const {
  const ExchangeOptions& options = job_.exchange;
  if (options.resident_blocks == 0) return gather_all(parameters);
  const auto layers = static_cast<double>(job_.shape.decoder.layers);
  const double share = std::max(1 - static_cast<double>(options.resident_blocks) / std::max(layers, 1.0), 0.0);
  ExchangeCost cost;
  for (const Part& part : parts(parameters)) {
    const double weights = share * part.blocks;
    if (!has_second_shard(options.second_shard_ranks, part.ranks.size)) {
      cost += gather(weights, part.ranks);
      continue;
    }
    if (weights <= 0) continue;
    const double bytes = static_cast<double>(job_.element_bytes()) * weights;
    cost.links += network_.seconds(Collective::all_gather, bytes, {options.second_shard_ranks, part.ranks.stride});
  }
  return cost;
}

ExchangeCost DataExchange::reduce(const StageParameters& parameters) const {
  ExchangeCost cost;
  for (const Part& part : parts(parameters)) cost += reduce(part.all, part.ranks);
  return cost;
}

ExchangeCost DataExchange::once_a_step(const StageParameters& parameters) const {
  ExchangeCost cost;
  if (layout_.shard == Shard::none) {
    for (const Part& part : parts(parameters)) {
      const double bytes = static_cast<double>(job_.gradient_bytes) * part.all;
      if (bytes > 0) cost.links += network_.seconds(Collective::all_reduce, bytes, part.ranks);
    }
    return cost;
  }
  if (!reduces_each_pass()) cost += reduce(parameters);
  cost += add_up_copies(parameters.dense / size_of(dense_));
  if (!gathers_each_pass()) cost += gather_all(parameters);
  return cost;
}

}  // namespace trireme::plan
