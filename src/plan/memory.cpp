#include "plan/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/operations.h"
#include "plan/stage_parameters.h"

namespace trireme::plan {
namespace {

// What a process has before the first tensor: context 0.3 to 0.5 GiB and the libraries' code and work spaces.
constexpr double kLibraries = 1.5 * kGiB;
// A communicator's buffers (Fujii et al.'s estimator adds the same).
constexpr double kCommunicator = 0.5 * kGiB;
// Of what comes and goes in a step: sizes are rounded, and free pieces do not fit the next request.
constexpr double kFragments = 0.06;

/// What a pipeline rank holds, summed over its chunks.
struct Held {
  StageParameters parameters;
  double kept_a_pass = 0;  ///< mean of the chunks, bytes of one micro-batch
  double whole_block = 0;  ///< the largest block with nothing recomputed
  double block_kept = 0;   ///< the same as it is kept
};

Held held_by(const Job& job, const Layout& layout, int64_t rank) {
  const auto dense_ops = block_operations(job, layout, false);
  const double dense = kept_bytes(job, layout, dense_ops), dense_whole = total(dense_ops).saved;
  double experts = 0, experts_whole = 0;
  if (job.shape.has_experts()) {
    const auto ops = block_operations(job, layout, true);
    experts = kept_bytes(job, layout, ops);
    experts_whole = total(ops).saved;
  }
  const std::vector<int64_t> layers = stage_layers(job.shape.decoder.layers, layout.stages());
  Held held;
  for (int64_t stage = 0, first = 0; stage < layout.stages(); first += layers[static_cast<size_t>(stage)], ++stage) {
    if (stage % layout.pipeline != rank) continue;
    held.parameters += stage_parameters(job, layout, stage);
    const int64_t here = layers[static_cast<size_t>(stage)];
    const int64_t plain = dense_layers(job, first, here);
    held.kept_a_pass += static_cast<double>(plain) * dense + static_cast<double>(here - plain) * experts;
    if (plain > 0) held.whole_block = std::max(held.whole_block, dense_whole), held.block_kept = dense;
    if (here > plain) held.whole_block = std::max(held.whole_block, experts_whole), held.block_kept = experts;
  }
  held.kept_a_pass /= static_cast<double>(layout.virtual_stages);
  return held;
}

double in_flight(const Job& job, const Layout& layout, int64_t rank) {
  return static_cast<double>(describe::most_in_flight(layout.schedule, layout.pipeline, layout.virtual_stages,
                                                      micro_batches(job, layout), rank));
}

/// Copies that share the sharded state of dense and of expert parameters.
struct Copies {
  double dense, experts;
};
Copies copies_of(const Layout& layout) {
  return {static_cast<double>(shard_ranks(layout)),
          std::max(1.0, static_cast<double>(layout.tensor * layout.context * layout.data / layout.expert))};
}

class Lines {
 public:
  /// Without `words` only bytes are summed, for a search that looks at thousands of layouts.
  Lines(RankMemory& rank, bool words) : rank_(rank), words_(words) {}
  template <typename How>
  void add(std::string_view purpose, double bytes, const How& how) {
    if (bytes <= 0) return;
    if (words_) rank_.items.push_back({purpose, bytes, how()});
    rank_.bytes += bytes;
  }

 private:
  RankMemory& rank_;
  bool words_;
};

/// Parameters of gathered units, or of those whose gradients come, that have room at once: where the trainer has places
/// for `blocks`, those and the ends; otherwise two units.
double with_room(const Job& job, const StageParameters& parameters, int64_t blocks) {
  if (job.exchange.resident_blocks == 0) return 2 * parameters.largest_unit;
  blocks = std::min(blocks, job.shape.decoder.layers);
  return static_cast<double>(blocks) * parameters.largest_block + parameters.ends;
}

/// What data ranks need to exchange what they divide (data_exchange.h).
void add_exchange(Lines& lines, const Job& job, const Layout& layout, const StageParameters& parameters) {
  const ExchangeOptions& options = job.exchange;
  const Copies copies = copies_of(layout);
  const bool divides = copies.dense > 1 && layout.shard != Shard::none;
  const bool gathers = divides && layout.shard == Shard::parameters;
  const auto element = static_cast<double>(job.element_bytes()), gradient = static_cast<double>(job.gradient_bytes);
  if (gathers && layout.pipeline > 1) {
    lines.add("gathered weights", element * parameters.dense,
              [&] { return std::string("all of the stage, for the step"); });
    return;
  }
  double messages = 0;
  if (gathers) {
    const double room = with_room(job, parameters, options.resident_blocks);
    lines.add("gathered weights", element * room,
              [&] { return fmt::format("{} bytes x {:.4g} parameters of units at a time", element, room); });
    messages += options.gathered_bytes * room * (1 + 1 / copies.dense);  // received, sent
    const auto neighbours = static_cast<double>(options.second_shard_ranks);
    double again = 0;
    if (has_second_shard(options.second_shard_ranks, static_cast<int64_t>(copies.dense)))
      again += parameters.dense_blocks() / neighbours;
    if (has_second_shard(options.second_shard_ranks, static_cast<int64_t>(copies.experts)))
      again += parameters.experts / neighbours;
    lines.add("second shard", element * again, [&] {
      return fmt::format("{} bytes x {:.4g} parameters, 1/{:.0f} of blocks", element, again, neighbours);
    });
  }
  // The trainer exchanges gradients in place where they are kept whole.
  const bool in_parts = layout.shard >= Shard::gradients && options.reduce_each_pass;
  if (!job.update_in_backward && (gathers || (divides && layout.data > 1))) {
    // What is rounded has left its place at once.
    const int64_t turns = options.reduced_bytes > 0 ? 1 : 2;
    const double room = options.resident_blocks == 0 || in_parts ? with_room(job, parameters, turns) : 0;
    lines.add("exchange buffers", gradient * room, [&] {
      return fmt::format("{} bytes x {:.4g} parameters, gradients before they are divided", gradient, room);
    });
  }
  if (divides) {
    const double largest = options.reduced_bytes * parameters.largest_unit;
    // Two take turns, of each what is sent to the others and received; between copies the same, and the sums.
    messages += 2 * 2 * largest * (1 - 1 / copies.dense);
    const auto replicas = static_cast<double>(layout.replicas);
    if (replicas > 1) messages += 2 * (2 * (1 - 1 / replicas) + 1 + 1 / replicas) * largest / copies.dense;
  }
  lines.add("messages", messages, [] { return std::string("rounded weights and gradients, sent and received"); });
}

void add_states(Lines& lines, const Job& job, const Layout& layout, const StageParameters& parameters) {
  const Copies copies = copies_of(layout);
  const auto elements = [&](bool divided) {
    return divided ? parameters.dense / copies.dense + parameters.experts / copies.experts : parameters.all();
  };
  const bool mixed = job.precision != Precision::fp32;
  const bool whole = layout.shard == Shard::parameters && copies.dense > 1;  // divided by one, nothing is
  const auto state = [&](std::string_view purpose, double size, bool divided) {
    lines.add(purpose, size * elements(divided), [&] {
      return fmt::format("{} bytes x {:.4g} parameters{}", size, elements(divided),
                         divided ? fmt::format(", 1/{:.0f} of this rank's", copies.dense) : "");
    });
  };
  // With whole sharding the master weights are the weights, and are cast as they are gathered.
  state("weights", mixed ? (whole ? 0 : 2) : 4, whole);
  const auto gradient = static_cast<double>(job.gradient_bytes);
  if (job.update_in_backward) {
    const double room = with_room(job, parameters, 2);
    lines.add("gradients", gradient * room,
              [&] { return fmt::format("{} bytes x {:.4g} parameters of units at a time", gradient, room); });
  } else {
    state("gradients", gradient, layout.shard >= Shard::gradients && job.exchange.reduce_each_pass);
  }
  if (mixed) state("master weights", 4, layout.shard >= Shard::optimizer);
  if (job.exchange.error_feedback && layout.shard != Shard::none) {
    // What goes to other ranks; and the share of a copy, which goes to other copies or is told to them.
    double rounded = parameters.dense * (1 - 1 / copies.dense) + parameters.experts * (1 - 1 / copies.experts);
    if (layout.replicas > 1 && copies.dense > 1) rounded += parameters.dense / copies.dense;
    lines.add("residuals of gradients", 4 * rounded,
              [&] { return fmt::format("4 bytes x {:.4g} parameters, what rounding lost", rounded); });
  }
  state("moments", 8, layout.shard >= Shard::optimizer);
  add_exchange(lines, job, layout, parameters);
}

RankMemory rank_memory(const Job& job, const Layout& layout, int64_t rank, bool words) {
  RankMemory result;
  result.pipeline_rank = rank;
  Lines lines(result, words);
  const Held held = held_by(job, layout, rank);
  add_states(lines, job, layout, held.parameters);

  const double passes = in_flight(job, layout, rank);
  const double activations = held.kept_a_pass * passes;
  lines.add("activations", activations, [&] {
    return fmt::format("{:.4g} MiB a pass x {:.0f} in flight, recompute {}", held.kept_a_pass / 1048576, passes,
                       config::name_of(layout.recompute));
  });
  double moving = activations;
  if (layout.recompute != Recompute::none) {
    const double again = std::max(0.0, held.whole_block - held.block_kept);
    lines.add("recomputed block", again, [&] { return std::string("one block as backward makes it again"); });
    moving += again;
  }
  if (rank + 1 == layout.pipeline) {
    const OpTotals head = total(head_operations(job, layout));
    const double rows = loss_rows(job, layout);
    const double logits = rows * static_cast<double>(job.shape.decoder.vocab) / static_cast<double>(layout.tensor);
    // Besides the fp32 logits: them in the compute type, and the gradient in both.
    const double loss = head.saved + (job.precision == Precision::fp32 ? 4 : 8) * logits;
    lines.add("logits and loss", loss,
              [&] { return fmt::format("{:.0f} rows of logits, 12 bytes each, and their gradient", rows); });
    moving += loss;
  }
  lines.add("fragments", kFragments * moving,
            [&] { return fmt::format("{:.0f} % of what comes and goes", 100 * kFragments); });
  int64_t communicators = 0;
  for (const int64_t size : {layout.tensor, layout.context, layout.data, layout.pipeline, layout.expert})
    communicators += size > 1 ? 1 : 0;
  const int64_t shards = shard_ranks(layout);
  communicators += layout.replicas > 1 && shards > 1 ? 1 : 0;
  const bool gathers = layout.shard == Shard::parameters && layout.pipeline == 1;
  communicators += gathers && has_second_shard(job.exchange.second_shard_ranks, shards) ? 1 : 0;
  lines.add("communicators", kCommunicator * static_cast<double>(communicators),
            [&] { return fmt::format("0.5 GiB x {} axes", communicators); });
  lines.add("context and libraries", kLibraries, [&] { return std::string("1.5 GiB, before the first tensor"); });
  return result;
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  return verdict == Verdict::fits ? "fits" : verdict == Verdict::tight ? "tight" : "does not fit";
}

Verdict verdict_on(double bytes, const Job& job) {
  const double share = bytes / (job.accelerator.memory_gib * kGiB);
  return share < kFits ? Verdict::fits : share <= kTight ? Verdict::tight : Verdict::does_not_fit;
}

double activation_bytes(const Job& job, const Layout& layout, int64_t pipeline_rank) {
  const double passes = in_flight(job, layout, pipeline_rank);
  return held_by(job, layout, pipeline_rank).kept_a_pass * passes;
}

MemoryPlan memory_plan(const Job& job, const Layout& layout) {
  MemoryPlan plan;
  plan.capacity = job.accelerator.memory_gib * kGiB;
  for (int64_t rank = 0; rank < layout.pipeline; ++rank) {
    plan.ranks.push_back(rank_memory(job, layout, rank, true));
    if (plan.ranks.back().bytes > plan.most().bytes) plan.fullest = static_cast<size_t>(rank);
  }
  plan.verdict = verdict_on(plan.most().bytes, job);
  plan.breaks = std::ranges::max_element(plan.most().items, {}, &MemoryItem::bytes)->purpose;
  return plan;
}

double most_bytes(const Job& job, const Layout& layout) {
  // The first rank keeps the most passes, the last has the logits, and a rank of the middle may have a layer more; with
  // experts the first blocks are smaller, and any rank may be the fullest.
  double most = 0;
  for (int64_t rank = 0; rank < layout.pipeline; ++rank) {
    const bool candidate = job.shape.has_experts() || rank < 2 || rank + 1 == layout.pipeline;
    if (candidate) most = std::max(most, rank_memory(job, layout, rank, false).bytes);
  }
  return most;
}

double zero_state_bytes(double parameters, double ranks, Shard level) {
  const double divided = level == Shard::none        ? 0
                         : level == Shard::optimizer ? 12
                         : level == Shard::gradients ? 14
                                                     : 16;
  return parameters * (16 - divided + divided / ranks);
}

}  // namespace trireme::plan
