// What a worker's memory will be used for, from the shape alone, before anything is allocated.
//
// An estimate in the sense of a sum of the tensors that the step keeps: parameters, optimizer state and what operations
// save for backward. Not in it: libraries and code, which are measured at the start of a run, scratch that
// libraries take for matrix products, and what the allocator keeps for reuse. Source of the idea: Korthikanti et al.,
// arXiv:2205.05198, section 4.1; the terms are those of our own operations (ops/).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "describe/model_shape.h"

namespace trireme::observe {

struct MemoryItem {
  std::string purpose;
  int64_t bytes = 0;
  std::string how;  ///< the arithmetic in words: "2 bytes a parameter"
};

struct MemoryOptions {
  config::Precision precision = config::Precision::bf16;
  config::Recompute recompute = config::Recompute::none;
  int64_t recompute_blocks = 1;  ///< with full: run again together; 0: about the square root of all
  int64_t micro_batch_size = 1;
  int64_t seq_len = 1;
  bool offload = false;  ///< the inputs of blocks wait elsewhere
  bool ema = false;      ///< a moving average of the weights is kept
  bool frozen = false;   ///< some weights have no gradient and no moments: how many is not known here

  // What data ranks divide; see parallel/data_parallel.h.
  config::Shard shard = config::Shard::none;
  int64_t shard_size = 1;     ///< ranks that divide one copy; they are taken to be on one machine
  bool shares_memory = true;  ///< they reach each other's memory, so that weights exist once for all of them
  int64_t prefetch = 1;
  bool reshard_after_forward = true;
  int64_t second_shard_ranks = 0;  ///< neighbours that keep gathered blocks among them; 0: nobody
  config::Quantize quantize_weights = config::Quantize::none;
  config::Quantize quantize_gradients = config::Quantize::none;
  int64_t quantize_block = 256;
  bool error_feedback = false;
  int64_t replicas = 1;  ///< copies of what is divided
  bool reduce_every_micro_batch = true;
  bool update_in_backward = false;                ///< optimizer.in_backward
  config::Offload state = config::Offload::none;  ///< optimizer.offload
  bool narrow_gradients = false;                  ///< in the type that computes
  int64_t product_threads = 0;     ///< of our own products of bf16 (ops/tiled_matmul.h); 0: a library makes them
  int64_t tree_micro_batches = 1;  ///< of a rank, with run.reproducible = "any_workers"; 1 without
};

/// At the step's fullest moment. Purposes: weights, master weights (bf16 and fp16), gradients, moments, moving average,
/// activations, and what is there with them: loss (logits of a chunk and the gradients that the fused loss keeps) or
/// workspace (gradients of activations in backward); and communication, where what travels is quantised. Of one worker;
/// what ranks share counts in equal parts.
std::vector<MemoryItem> estimate_memory(const describe::ModelShape& shape, const MemoryOptions& options);

/// What the blocks of an architecture that a program adds keep for backward is not known: the estimate has their inputs
/// only, and is less than what will be used.
bool is_lower_bound(const describe::ModelShape& shape);

/// Of one worker of a run on this machine, that computes with `threads`.
std::vector<MemoryItem> estimate_memory(const config::Config& config, int64_t threads);
/// What would make the run smaller: "a smaller train.micro_batch_size (now 8) or train.seq_len (now 512), ...".
std::string ways_to_less_memory(const config::Config& config);

int64_t total_bytes(std::span<const MemoryItem> items);

}  // namespace trireme::observe
