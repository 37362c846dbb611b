#include "observe/memory_estimate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "describe/architecture.h"
#include "describe/kept_activations.h"
#include "describe/matmul_plan.h"
#include "describe/offload_pieces.h"
#include "observe/format.h"
#include "ops/tile_product.h"

namespace trireme::observe {
namespace {

struct Sizes {
  int64_t weight;   // of an element that computes
  int64_t compute;  // of master weights, gradients in fp32, moments: ops::compute_type of the above
};

Sizes sizes_of(config::Precision precision) {
  switch (precision) {
    case config::Precision::bf16:
    case config::Precision::fp16:
      return {2, 4};
    case config::Precision::fp32:
      return {4, 4};
    case config::Precision::fp64:
      return {8, 8};
  }
  return {8, 8};
}

// Parameters of a block, of the units that are not of blocks, and of the largest unit.
struct UnitSizes {
  int64_t block, ends, largest;
};
UnitSizes unit_sizes(const describe::ModelShape& shape) {
  const describe::ParameterCounts counts = describe::count_parameters(shape);
  const int64_t norm = shape.hidden * (shape.is_gpt() ? 2 : 1);  // the final one
  const int64_t ends = counts.embedding + counts.positions + counts.head + norm;
  const int64_t block = shape.layers == 0 ? 0 : (counts.total() - ends) / shape.layers;
  // Tied, embedding and head are one unit.
  const int64_t first = counts.embedding + counts.positions, last = counts.head + norm;
  return {block, ends, std::max(block, shape.tied ? ends : std::max(first, last))};
}

// An element's share of a quantised message.
double packed_bytes(config::Quantize quantize, int64_t block) {
  return (quantize == config::Quantize::int4 ? 0.5 : 1) + 4.0 / static_cast<double>(block);
}

// Where weights or gradients travel quantised (parallel/quantized_parts.h, parallel/quantized_gradients.h): what is
// sent and received.
void add_messages(std::vector<MemoryItem>& items, const UnitSizes& unit, const MemoryOptions& options, int64_t blocks) {
  using config::Quantize;
  double bytes = 0;
  const auto ranks = static_cast<double>(options.shard_size), copies = static_cast<double>(options.replicas);
  if (options.quantize_weights != Quantize::none) {
    const double gathered = static_cast<double>(blocks * unit.block + unit.ends) *
                            packed_bytes(options.quantize_weights, options.quantize_block);
    bytes += gathered / ranks + gathered / (options.shares_memory ? ranks : 1);
  }
  if (options.quantize_gradients != Quantize::none) {
    const double largest =
        static_cast<double>(unit.largest) * packed_bytes(options.quantize_gradients, options.quantize_block);
    // Two that take turns, of each what goes to the others and what comes from them; between copies the same, and the
    // sums that they tell each other.
    bytes += 2 * 2 * largest * (ranks - 1) / ranks;
    if (options.replicas > 1) bytes += 2 * (2 * (copies - 1) / copies + 1 + 1 / copies) * largest / ranks;
  }
  if (bytes > 0)
    items.push_back({"communication", static_cast<int64_t>(bytes), "of what travels quantised, sent and received"});
}

// Weights, gradients and what the optimizer keeps, at each level of sharding.
void add_parameters(std::vector<MemoryItem>& items, const describe::ModelShape& shape, const MemoryOptions& options,
                    const Sizes& sizes) {
  using config::Shard;
  const int64_t all = describe::count_parameters(shape).total(), ranks = options.shard_size;
  const UnitSizes unit = unit_sizes(shape);
  const std::string among = ranks == 1 ? "" : fmt::format(", divided among {}", ranks);
  const auto per_parameter = [&](const char* purpose, int64_t bytes) {
    items.push_back({purpose, all * bytes / ranks, fmt::format("{} bytes a parameter{}", bytes, among)});
  };
  // What optimizer.offload moves.
  const auto state = [&](const char* purpose, int64_t bytes) {
    per_parameter(purpose, bytes);
    MemoryItem& item = items.back();
    if (options.state == config::Offload::host) item.how += ", in the host's tier";
    if (options.state != config::Offload::disk) return;
    item.how = fmt::format("{} on disk: {}", short_bytes(item.bytes), item.how);
    item.bytes = 0;
  };
  const auto units = [&](int64_t blocks) {
    return fmt::format("of {} and of the ends", blocks == 1 ? "one block" : fmt::format("{} blocks", blocks));
  };
  const Shard shard = ranks == 1 ? Shard::none : options.shard;  // divided by one, nothing is
  const bool gathers = shard == Shard::parameters;
  const bool has_second = gathers && options.second_shard_ranks > 0;
  // With a second shard, or where each rank makes weights from what it has received, they are each rank's own.
  const bool own = has_second || (gathers && options.quantize_weights != config::Quantize::none);
  const int64_t sharing = options.shares_memory && !own ? ranks : 1;
  const int64_t blocks = options.reshard_after_forward ? std::min(options.prefetch + 1, shape.layers) : shape.layers;
  if (gathers) {
    items.push_back({"weights", (blocks * unit.block + unit.ends) * sizes.weight / sharing,
                     fmt::format("{} bytes a parameter {}{}", sizes.weight, units(blocks),
                                 sharing == 1 ? "" : fmt::format(", once for {} workers", sharing))});
    if (has_second) {
      items.back().bytes += shape.layers * unit.block * sizes.weight / options.second_shard_ranks;
      items.back().how += fmt::format(", and blocks divided among {} neighbours", options.second_shard_ranks);
    }
  } else {
    items.push_back({"weights", all * sizes.weight / sharing,
                     fmt::format("{} bytes a parameter{}", sizes.weight,
                                 sharing == 1 ? "" : fmt::format(", once for {} workers", sharing))});
  }
  const bool masters_move = options.state != config::Offload::none && sizes.weight != sizes.compute;
  if (masters_move && gathers) {
    items.back().bytes += all * sizes.weight / ranks;
    items.back().how += fmt::format(", and {} a parameter to gather from{}", sizes.weight, among);
  }
  if (masters_move) {
    state("master weights", sizes.compute);
  } else if (gathers || sizes.weight != sizes.compute) {
    per_parameter("master weights", sizes.compute);
  }
  const int64_t gradient = options.narrow_gradients ? sizes.weight : sizes.compute;
  const bool at_once = shard >= Shard::gradients && options.reduce_every_micro_batch;
  const bool rounds = shard != Shard::none && options.quantize_gradients != config::Quantize::none;
  const int64_t turns = std::min<int64_t>(rounds ? 1 : 2, shape.layers);  // blocks that have room for their gradients
  if (options.update_in_backward) {
    items.push_back({"gradients", (turns * unit.block + unit.ends) * gradient,
                     fmt::format("{} bytes a parameter {}", gradient, units(turns))});
  } else if (at_once) {
    items.push_back({"gradients", all * gradient / ranks + (turns * unit.block + unit.ends) * gradient,
                     fmt::format("{} bytes a parameter{}, and {}", gradient, among, units(turns))});
  } else {
    items.push_back({"gradients", all * gradient, fmt::format("{} bytes a parameter", gradient)});
  }
  // parallel/gradients.h: sums of 1, 2, 4, ... micro-batches that wait for their neighbours.
  const int64_t waiting = std::bit_width(static_cast<uint64_t>(options.tree_micro_batches)) - 1;
  if (waiting > 0) {
    items.back().bytes += waiting * all * gradient / (at_once ? ranks : 1);
    items.back().how +=
        fmt::format(", and {} more for a tree of {} micro-batches", waiting, options.tree_micro_batches);
  }
  if (rounds && options.error_feedback) {
    // Of what goes to the other ranks; and of the rank's shard, which goes to other copies or is told to them.
    items.back().bytes += all * sizes.compute * (ranks - 1) / ranks;
    if (options.replicas > 1) items.back().bytes += all * sizes.compute / ranks;
    items.back().how += ", and what rounding loses of them";
  }
  state("moments", 2 * sizes.compute);
  if (options.state != config::Offload::none) {
    // A piece of gradients, and of weights or masters, as they come and go; or pieces that are read and written.
    const int64_t element = options.state == config::Offload::host
                                ? gradient + sizes.weight
                                : describe::kDiskPieces * (masters_move ? 3 : 2) * sizes.compute;
    items.back().bytes += describe::kOffloadPieceElements * element;
    items.back().how += ", and pieces on their way";
  }
  if (shard != Shard::none) add_messages(items, unit, options, blocks);
  if (options.frozen)
    for (MemoryItem& item : items)
      if (item.purpose == "gradients" || item.purpose == "moments") item.how += ", less for what is frozen";
  if (options.ema) per_parameter("moving average", sizes.compute);
}

std::string what_is_kept(const describe::ModelShape& shape, const MemoryOptions& options, int64_t group,
                         bool backward) {
  if (options.recompute != config::Recompute::full) return "what all blocks keep for backward";
  std::string inputs = "the inputs of all blocks";
  if (options.offload)
    inputs = "the inputs of blocks wait elsewhere";
  else if (group > 1)
    inputs = fmt::format("the inputs of every {} blocks", group);
  if (!backward) return inputs;
  return fmt::format("{}, and {} whole", inputs,
                     group == 1 ? "one block" : fmt::format("{} blocks", std::min(group, shape.layers)));
}

}  // namespace

std::vector<MemoryItem> estimate_memory(const describe::ModelShape& shape, const MemoryOptions& options) {
  const Sizes sizes = sizes_of(options.precision);
  const int64_t tokens = options.micro_batch_size * options.seq_len;

  std::vector<MemoryItem> items;
  add_parameters(items, shape, options, sizes);

  if (shape.sliding_window > 0 && shape.sliding_window < options.seq_len)
    items.push_back({"window mask", options.seq_len * options.seq_len * sizes.weight, "sequence x sequence, once"});

  // ops::linear_cross_entropy: the logits of a chunk, and the gradient of its input; in fp16 also the product of a
  // chunk that is added to the head's gradient.
  const int64_t row = shape.vocab * sizes.weight;
  const int64_t rows = describe::loss_rows_per_chunk(tokens, shape.vocab, sizes.weight);
  int64_t product = options.precision == config::Precision::fp16 ? shape.vocab * shape.hidden * sizes.weight : 0;
  // A gradient in bf16 is summed over chunks in fp32.
  if (options.narrow_gradients && tokens > rows) product = shape.vocab * shape.hidden * sizes.compute;
  const MemoryItem loss{"loss", rows * row + tokens * shape.hidden * sizes.weight + product,
                        fmt::format("logits of {} rows", rows)};
  const int64_t scratch =
      options.product_threads > 0 && options.precision == config::Precision::bf16
          ? describe::scratch_bytes({rows, shape.hidden, shape.vocab, options.narrow_gradients && tokens <= rows},
                                    options.product_threads)
          : 0;
  const MemoryItem of_products{"workspace", scratch, "packed operands of the head's products"};
  if (is_lower_bound(shape)) {
    const int64_t inputs = options.offload ? 2 : shape.layers + 1;
    items.push_back(
        {"activations", tokens * inputs * shape.hidden * sizes.weight,
         fmt::format("the inputs of all blocks; what {} keeps inside them is not known", shape.architecture)});
    items.push_back(loss);
    if (scratch > 0) items.push_back(of_products);
    return items;
  }
  const int64_t group = describe::recompute_group(shape.layers, options.recompute_blocks);
  const describe::KeptBytes kept =
      describe::kept_activations(shape, {.tokens = tokens,
                                         .seq_len = options.seq_len,
                                         .types = {sizes.weight, sizes.compute},
                                         .recompute = options.recompute,
                                         .group = group,
                                         .product_threads = scratch > 0 ? options.product_threads : 0,
                                         .offload = options.offload});
  // The fuller of the two moments. In the first the loss has its input still, the output of the final norm.
  const int64_t at_loss = kept.after_forward + tokens * shape.hidden * sizes.weight;
  const bool backward = kept.in_backward + kept.workspace > at_loss + loss.bytes + scratch;
  items.push_back(
      {"activations", backward ? kept.in_backward : at_loss, what_is_kept(shape, options, group, backward)});
  if (backward) {
    items.push_back({"workspace", kept.workspace, "gradients of activations in a block"});
    return items;
  }
  items.push_back(loss);
  if (scratch > 0) items.push_back(of_products);
  return items;
}

namespace {

int64_t tree_micro_batches(const config::Config& config) {
  const int64_t ranks = std::max<int64_t>(config.parallel.data, 1), micro = config.train.micro_batch_size;
  if (config.run.reproducible != config::Reproducible::any_workers) return 1;
  return std::max<int64_t>(config.train.global_batch_size / (micro * ranks), 1);
}

int64_t product_threads(const config::Config& config, int64_t threads) {
  if (config.run.device != config::Device::cpu || !ops::tile_products_apply()) return 0;
  return config.run.reproducible == config::Reproducible::any_workers ? 1 : std::max<int64_t>(1, threads);
}

int64_t copies(const config::ParallelConfig& parallel) {
  return std::max<int64_t>(parallel.data / std::max<int64_t>(parallel.shard_size, 1), 1);
}

}  // namespace

std::vector<MemoryItem> estimate_memory(const config::Config& config, int64_t threads) {
  return estimate_memory(config.model, {.precision = config.train.precision,
                                        .recompute = config.train.recompute,
                                        .recompute_blocks = config.train.recompute_blocks,
                                        .micro_batch_size = config.train.micro_batch_size,
                                        .seq_len = config.train.seq_len,
                                        .offload = config.train.activation_offload != config::Offload::none,
                                        .ema = config.train.ema_decay > 0,
                                        .frozen = !config.train.frozen.empty(),
                                        .shard = config.parallel.shard,
                                        .shard_size = std::max<int64_t>(config.parallel.shard_size, 1),
                                        .shares_memory = config.run.device == config::Device::cpu &&
                                                         (config.comm.backend == config::CommBackend::automatic ||
                                                          config.comm.backend == config::CommBackend::shm),
                                        .prefetch = config.parallel.prefetch,
                                        .reshard_after_forward = config.parallel.reshard_after_forward.after_forward,
                                        .second_shard_ranks = config.parallel.reshard_after_forward.group,
                                        .quantize_weights = config.parallel.quantize_weights,
                                        .quantize_gradients = config.parallel.quantize_gradients,
                                        .quantize_block = config.parallel.quantize_block,
                                        .error_feedback = config.parallel.quantize_error_feedback,
                                        .replicas = copies(config.parallel),
                                        .reduce_every_micro_batch = config.parallel.reduce_every_micro_batch,
                                        .update_in_backward = config.optimizer.in_backward,
                                        .state = config.optimizer.offload,
                                        .narrow_gradients = config.train.gradient_dtype == "bf16",
                                        .product_threads = product_threads(config, threads),
                                        .tree_micro_batches = tree_micro_batches(config)});
}

std::string ways_to_less_memory(const config::Config& config) {
  const config::TrainConfig& train = config.train;
  std::vector<std::string> ways;
  if (train.micro_batch_size > 1)
    ways.push_back(
        fmt::format("a smaller train.micro_batch_size (now {}; the global batch stays)", train.micro_batch_size));
  ways.push_back(fmt::format("a smaller train.seq_len (now {})", train.seq_len));
  if (train.recompute != config::Recompute::full)
    ways.push_back(fmt::format("train.recompute = \"full\" (now \"{}\")", config::name_of(train.recompute)));
  else if (train.activation_offload == config::Offload::none)
    ways.emplace_back("train.activation_offload = \"disk\"");
  if (config.parallel.data > 1 && config.parallel.shard != config::Shard::parameters)
    ways.push_back(fmt::format("parallel.shard = \"parameters\" (now \"{}\")", config::name_of(config.parallel.shard)));
  if (train.ema_decay > 0) ways.emplace_back("train.ema_decay = 0");
  if (config.run.device == config::Device::cpu && config.optimizer.offload != config::Offload::disk &&
      config.parallel.quantize_weights == config::Quantize::none)
    ways.emplace_back("optimizer.offload = \"disk\"");
  ways.emplace_back("a smaller model");
  return fmt::format("{} or {}", fmt::join(ways.begin(), ways.end() - 1, ", "), ways.back());
}

bool is_lower_bound(const describe::ModelShape& shape) {
  return describe::registered_architecture(shape.architecture) != nullptr;
}

int64_t total_bytes(std::span<const MemoryItem> items) {
  int64_t total = 0;
  for (const MemoryItem& item : items) total += item.bytes;
  return total;
}

}  // namespace trireme::observe
