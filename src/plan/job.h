// What is planned: a model, a batch, a machine (Job), and one way to divide the work among its accelerators (Layout).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "describe/pipeline_schedule.h"
#include "describe/work_shape.h"
#include "plan/accelerator.h"

namespace trireme::plan {

using config::Recompute;
using describe::PipelineSchedule;

enum class Precision { bf16, fp16, fp8, fp32 };  ///< of matrix products; fp8 keeps bf16 activations and weights
/// What recompute = selective makes again.
enum class Selective {
  core,      ///< the core of attention where its scores are written out (Megatron-LM; arXiv:2205.05198, section 5)
  cheap,     ///< the outputs of norms and activations (Trireme's own)
  products,  ///< all but every second product's output and attention's (TorchTitan's "op" policy)
};
enum class Shard { none, optimizer, gradients, parameters };  ///< what data ranks divide: nothing, ZeRO 1, 2, 3
std::string_view name_of(Precision precision);
std::string_view name_of(Shard shard);
/// Throw InputError that lists the names.
Precision precision_from(std::string_view name);
Shard shard_from(std::string_view name);

/// What turns counts into seconds. The first four belong to a kind of accelerator with its software and may be fitted
/// to measured steps (calibration.h); the rest is the same everywhere. Zero in a fitted one: from the data sheet.
struct Constants {
  double matmul_share = 0;    ///< rate of large matrix products / peak; 0: 0.8 x the best that was measured / peak
  double memory_share = 0.6;  ///< of memory bandwidth that element-wise passes reach
  double link_share = 0.7;    ///< of a link's bandwidth that collectives reach, both tiers
  double kernel_gap_us = 3;   ///< lost between two kernels

  double flash_share = 0.4;          ///< rate of fused attention / rate of large matrix products
  double scale_up_latency_us = 2;    ///< a step of a ring inside the fast domain
  double scale_out_latency_us = 10;  ///< a step of a tree over the network
  double host_us = 8;                ///< the host starts a kernel: layers of small kernels wait for it
  double overlap_slowdown = 0.1256;  ///< compute lost to a collective at its side (Galvatron's measured coefficient)
  double optimizer_bytes = 34;       ///< moved a parameter: master, moments, gradient, weight, and the norm's pass
};

/// What data ranks do with what they divide. As it stands: FSDP's way, which most published runs take. The trainer has
/// room for some units, and options to exchange fewer bytes (ZeRO++, arXiv:2306.10209).
struct ExchangeOptions {
  double gathered_bytes = 0;       ///< of a weight that is rounded for its way; 0: none is
  double reduced_bytes = 0;        ///< of a gradient that is rounded for its way; 0: none is
  bool error_feedback = false;     ///< what rounding of gradients lost is kept
  int64_t second_shard_ranks = 0;  ///< neighbours among whom blocks are gathered again; 0: among all
  int64_t resident_blocks = 0;     ///< gathered blocks with room, those at the turn between passes need no gather;
                                   ///< the ends stay for the step. 0: two units have room, all are gathered each pass
  bool reduce_each_pass = true;    ///< gradients that are divided; otherwise once a step
};

struct Job {
  describe::WorkShape shape;
  int64_t seq_len = 0;
  int64_t global_batch = 0;  ///< sequences a step
  int64_t gpus = 0;
  Precision precision = Precision::bf16;
  bool flash = true;  ///< fused attention; otherwise scores are written out
  bool loss_in_chunks =
      false;  ///< of rows of logits (describe::loss_rows_per_chunk); otherwise of all of the micro-batch
  int64_t gradient_bytes = 4;  ///< of an element that accumulates and is exchanged
  ExchangeOptions exchange;
  bool update_in_backward = false;  ///< of weights, unit by unit, after which their gradients are given up
  Selective selective = Selective::core;
  bool overlap_gradients = true;  ///< the data ranks' exchange runs beside the backward pass
  double expert_imbalance = 1;    ///< tokens of the busiest rank / mean
  Accelerator accelerator;
  Constants constants;

  bool dropout() const { return shape.decoder.dropout > 0; }
  int64_t tokens_per_step() const { return global_batch * seq_len; }
  /// Of an activation, and of a weight as it is multiplied; fp8 is made in each product.
  int64_t element_bytes() const { return precision == Precision::fp32 ? 4 : 2; }
};

/// Ranks are numbered tensor, context, data, pipeline, innermost first, as Megatron does; expert ranks are taken from
/// tensor x context x data.
struct Layout {
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t pipeline = 1;
  int64_t virtual_stages = 1;
  int64_t data = 1;
  int64_t expert = 1;
  int64_t micro_batch = 1;        ///< sequences
  bool sequence_parallel = true;  ///< with tensor > 1: norms and dropout work on a part of the sequence
  Recompute recompute = Recompute::none;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  Shard shard = Shard::none;
  int64_t replicas = 1;             ///< copies of what is divided: data x context / replicas ranks divide one (HSDP)
  bool replicas_innermost = false;  ///< neighbours have the same shards; otherwise they divide a copy

  bool operator==(const Layout&) const = default;
  int64_t stages() const { return pipeline * virtual_stages; }
  int64_t sequence_split() const { return sequence_parallel ? tensor : 1; }
};

/// "tensor 8 x pipeline 16 x data 128, micro-batch 1, 1f1b, recompute none, shard none"
std::string to_text(const Layout& layout);

/// What keeps the job from being planned, whatever the layout: the model's shape, numbers that the accelerator lacks.
std::vector<std::string> job_faults(const Job& job);

/// Why the layout cannot run the job; each fault has both numbers and what works. Empty: it can.
std::vector<std::string> layout_faults(const Job& job, const Layout& layout);

/// Ranks that divide a copy of what is divided.
int64_t shard_ranks(const Layout& layout);
/// Whether neighbours can keep a second shard of what `ranks` divide: `neighbours` of them are several equal groups.
bool has_second_shard(int64_t neighbours, int64_t ranks);

/// Micro-batches of a step; the layout is sound.
int64_t micro_batches(const Job& job, const Layout& layout);

/// Layers of each stage: as even as can be, and what is over goes to the middle, since the first stage has the
/// embedding and the last the head (as Llama 3 405B does, arXiv:2407.21783, section 3.3.2). [stages]
std::vector<int64_t> stage_layers(int64_t layers, int64_t stages);

}  // namespace trireme::plan
