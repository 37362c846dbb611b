// What data ranks exchange: weights that they divide, and sums of gradients.
//
// The ranks that divide gather (all-gather) and reduce (reduce-scatter) on both tiers of the network (network.h). Where
// gradients are rounded for their way, each rank sends each other its rows, straight (an all-to-all, so that sums are
// of what was rounded once): what leaves a domain then crosses on the sender's own port, and is not added up before it.
//
// With a second shard, a unit is gathered among all once a step, and blocks in the later passes among S neighbours: of
// m micro-batches, 2m - 1 passes. Where S does not divide the ranks, or is not less than they are, there is none
// (has_second_shard).
//
// Copies of what is divided (HSDP) add up their shards once a step: an all-reduce, or with rounding an all-to-all and
// then an all-gather of the sums, each rank on its own port where a copy fills a domain.
#pragma once

#include <array>

#include "plan/network.h"
#include "plan/stage_parameters.h"

namespace trireme::plan {

/// Seconds.
struct ExchangeCost {
  double links = 0;     ///< compute may run beside it
  double rounding = 0;  ///< of numbers for their way and back: passes of the rank's own, bounded by memory
  double late = 0;      ///< on links when backward is over: nothing runs beside it

  ExchangeCost& operator+=(const ExchangeCost& other) {
    links += other.links, rounding += other.rounding, late += other.late;
    return *this;
  }
};

/// `parameters`: of one rank. The job, the layout and the network outlive it.
class DataExchange {
 public:
  DataExchange(const Job& job, const Layout& layout, const Network& network);

  /// Weights in parts are gathered for each pass; with a pipeline the gathered weights stay for the step.
  bool gathers_each_pass() const;
  /// Gradients in parts are reduced before the next micro-batch's are added.
  bool reduces_each_pass() const;

  /// All weights, as the first pass of a step finds them: nowhere but at their owners.
  ExchangeCost gather_all(const StageParameters& parameters) const;
  /// Weights that a later pass of the step has to gather again.
  ExchangeCost gather_again(const StageParameters& parameters) const;
  /// Gradients to their owners.
  ExchangeCost reduce(const StageParameters& parameters) const;
  /// What is not part of each pass: sums of gradients, and weights back from their owners.
  ExchangeCost once_a_step(const StageParameters& parameters) const;

 private:
  /// Ranks with the same parameters, and how many of those there are.
  struct Part {
    Group ranks;
    double blocks, all;
  };
  std::array<Part, 2> parts(const StageParameters& parameters) const;
  ExchangeCost gather(double weights, const Group& ranks) const;
  ExchangeCost reduce(double gradients, const Group& ranks) const;
  ExchangeCost add_up_copies(double gradients) const;

  const Job& job_;
  const Layout& layout_;
  const Network& network_;
  double memory_ = 0;  // bytes a second of a pass
  Group dense_, experts_, replicas_;
};

}  // namespace trireme::plan
