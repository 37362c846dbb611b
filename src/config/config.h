// What a run is: one struct a section of the config file, members named exactly as the keys.
//
// The defaults of all options stand here, and nowhere else; their help, ranges and choices stand in options.cpp, one
// line of thought an option. Parsing, --set, `trireme config`, the documentation page and validation all come from that
// table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "describe/model_shape.h"
#include "describe/recompute.h"

namespace trireme::config {

enum class Device { cpu, cuda };
enum class Precision { bf16, fp16, fp32, fp64 };
using describe::Recompute;
enum class Offload { none, host, disk };
enum class LrScheduleName { cosine, linear, sqrt, wsd, inverse_sqrt, constant };
enum class Reproducible { layout, any_workers };
enum class Shard { none, optimizer, gradients, parameters };
enum class Quantize { none, int8, int4 };
enum class CommBackend { automatic, shm, mpi, nccl };
enum class CommCheck { calls, shapes, all };

struct RunConfig {
  std::filesystem::path dir;          ///< against the working folder; default runs/<name of the config file>
  std::filesystem::path offload_dir;  ///< of nameless files; empty: run.dir/offload. Absolute after loading
  int64_t seed = 0;
  Device device = Device::cpu;
  double time_limit_minutes = 0;  ///< 0: none
  Reproducible reproducible = Reproducible::layout;
};

/// The resolved shape: the preset's numbers with explicit keys on top. `preset` says only where it started.
struct ModelConfig : describe::ModelShape {
  std::string preset;  ///< "": every number was given

  ModelConfig() = default;  // not an aggregate: g++ 12 warns of Config{} with one as a member's base
};

struct DataConfig {
  std::filesystem::path path;       ///< folder of prepared token shards; absolute after loading
  std::filesystem::path eval_path;  ///< the same for held-out text; empty: none
  std::vector<std::string> text;    ///< files, folders or globs that `path` is prepared from on first use
  std::vector<std::string> eval_text;
  std::string text_field = "text";  ///< of the lines of .jsonl files among them
  int64_t vocab = 0;  ///< size of the tokenizer trained on first use; 0 in a file: model.vocab. Never 0 after loading
  std::string generator;  ///< "synthetic-english": writes the text itself on first use; "": none
};

struct TrainConfig {
  int64_t steps = 1000;
  int64_t stop_after = 0;          ///< save and end after this step; 0: run to `steps`
  int64_t seq_len = 512;           ///< tokens
  int64_t micro_batch_size = 8;    ///< sequences a worker handles at once
  int64_t global_batch_size = -1;  ///< sequences a step, all workers; -1 until resolve_world: micro x data ranks
  Precision precision = Precision::bf16;
  std::vector<std::string> frozen;  ///< patterns of names
  std::string gradient_dtype = "fp32";
  double clip_grad_norm = 1.0;  ///< 0: no clipping
  Recompute recompute = Recompute::none;
  int64_t recompute_blocks = 1;  ///< with full: blocks that are run again together; 0: the square root of all
  Offload activation_offload = Offload::none;
  bool document_mask = false;         ///< attention does not cross documents
  bool mask_document_starts = false;  ///< the first token of a document is no label
  double z_loss = 0;                  ///< coefficient; 0: none
  double ema_decay = 0;               ///< of a moving average of the weights; 0: none
};

/// Batch sizes that grow with the samples seen (Megatron's --rampup-batch-size).
struct BatchRampConfig {
  int64_t start = 0;      ///< sequences of the first step; 0: no ramp
  int64_t increment = 0;  ///< sequences added at a time
  int64_t samples = 0;    ///< sequences after which the batch is train.global_batch_size
};

/// fp16's loss scale, as torch.amp.GradScaler adapts it.
struct LossScaleConfig {
  double initial = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< sound steps in a row before it grows
  bool operator==(const LossScaleConfig&) const = default;
};

/// Steps whose gradient norm is far above the last ones' are not learned from.
struct SpikeGuardConfig {
  double factor = 0;     ///< times the median of the window; 0: no guard
  int64_t window = 100;  ///< steps
};

struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool in_backward = false;
  Offload offload = Offload::none;  ///< of moments, and of master weights apart from those that compute
};

/// Warm-up, a plateau at optimizer.lr, then decay over the last `decay_steps` before the horizon `steps`.
struct LrScheduleConfig {
  LrScheduleName name = LrScheduleName::cosine;
  int64_t warmup_steps = -1;  ///< -1 in a file: a tenth of the horizon, at most 2000. Never -1 after loading
  int64_t steps = -1;         ///< the horizon; -1 in a file: train.steps. Never -1 after loading
  int64_t decay_steps = -1;   ///< -1 in a file: all steps after warm-up (constant: 0). Never -1 after loading
  double min_ratio = 0.1;     ///< of optimizer.lr, reached at the horizon
};

/// What becomes of gathered weights after forward: true, false, or a number in the file.
struct Reshard {
  bool after_forward = true;  ///< false: they stay until the step ends
  int64_t group = 0;          ///< neighbours that divide a second shard among them until the step ends; 0: nobody
  bool operator==(const Reshard&) const = default;
};

struct ParallelConfig {
  int64_t data = -1;  ///< data ranks; -1 until resolve_world: what the other axes leave of the world
  Shard shard = Shard::none;
  int64_t shard_size = -1;  ///< -1 until resolve_world: all data ranks, or with `none` each alone
  int64_t prefetch = 1;
  Reshard reshard_after_forward;
  Quantize quantize_weights = Quantize::none;    ///< on their way to other ranks
  Quantize quantize_gradients = Quantize::none;  ///< likewise
  int64_t quantize_block = 256;                  ///< elements that share a scale
  bool quantize_error_feedback = false;          ///< of gradients
  bool reduce_every_micro_batch = true;
  int64_t check_replicas = 100;  ///< steps; 0: never
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t pipeline = 1;
  int64_t expert = 1;
  std::vector<std::string> order = {"default"};  ///< a name, or all axes with the innermost first
  std::string schedule = "1f1b";
  int64_t virtual_stages = 1;

  /// After resolve_world: data ranks that hold the same.
  int64_t replicas() const { return data / shard_size; }
};

/// A link that the operations of an axis pretend to go over; see comm/link.h.
struct LinkConfig {
  double gb_per_s = 0;    ///< 0: without limit
  double latency_us = 0;  ///< of each step of the ring
  std::string hardware;   ///< an accelerator of the catalogue, in place of gb_per_s; empty: none
};

struct EmulateConfig {
  LinkConfig shard, second_shard, replicate;
};

struct CommConfig {
  CommBackend backend = CommBackend::automatic;
  double timeout_s = 300;
  CommCheck check = CommCheck::calls;
  int64_t flight_recorder = 2000;  ///< operations that are kept; 0: none
  EmulateConfig emulate;
};

struct CheckpointConfig {
  int64_t interval = 500;      ///< steps; 0: only the last
  int64_t keep = 3;            ///< newest ones kept; 0: all
  bool resume = true;          ///< go on from the newest complete checkpoint of run.dir
  std::filesystem::path load;  ///< a checkpoint to start from when there is none to resume; empty: none
};

struct EvalConfig {
  int64_t interval = 500;            ///< steps; 0: never
  int64_t tokens = 0;                ///< at most so many tokens of each set; 0: the whole held-out text
  std::vector<std::string> sets;     ///< "NAME=FOLDER" of more held-out sets, see named_path.h; absolute after loading
  std::vector<std::string> choices;  ///< "NAME=FILE" of multiple-choice questions, see data/choices.h; likewise
};

struct MetricsConfig {
  int64_t interval = 10;  ///< steps a line
  bool layer_grad_norms = false;
  bool tensorboard = false;  ///< event files in run.dir/tensorboard
  int64_t histograms = 0;    ///< steps between histograms of weights and gradients in them; 0: never
};

/// Where the time of some steps goes (train/profiler.h).
struct ProfileConfig {
  int64_t steps = 0;         ///< 0: no profile
  int64_t warmup_steps = 3;  ///< before the first of them, counted from where a call of the program starts
};

struct MemoryConfig {
  bool caching_allocator = true;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  BatchRampConfig batch_ramp;
  LossScaleConfig loss_scale;
  SpikeGuardConfig spike_guard;
  OptimizerConfig optimizer;
  LrScheduleConfig lr_schedule;
  ParallelConfig parallel;
  CommConfig comm;
  CheckpointConfig checkpoint;
  EvalConfig eval;
  MetricsConfig metrics;
  ProfileConfig profile;
  MemoryConfig memory;
};

/// Fills in what follows from other options, for a Config made by hand; loading does it by itself. Model: head_dim
/// (hidden / heads), kv_heads (heads) and max_seq_len (train.seq_len) that are 0; lr_schedule's -1s; data.vocab.
void complete(Config& config);

/// Reads a TOML file, puts `overrides` ("section.key=value", the value as TOML or a bare word) on top, fills in what
/// follows from other options, and checks everything. Relative data paths are taken from the config file's folder and
/// made absolute; run.dir and checkpoint.load from the working folder. Throws one InputError that holds every fault
/// found, each with its full key.
Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides = {});

/// The same from text: `folder` is what data paths are relative to, `name` is what messages call the file and what
/// the default run.dir is named after.
Config parse_config(std::string_view toml, const std::string& name, const std::filesystem::path& folder,
                    std::span<const std::string> overrides = {});

/// The config that a checkpoint holds, which may be of an earlier version: options that are gone are left out.
Config parse_saved_config(std::string_view text);

/// Every option with its value, as a TOML file that load_config reads back to an equal Config.
std::string to_toml(const Config& config);

/// Makes the config that of a world of `world` workers: fills in parallel.data, parallel.shard_size and
/// train.global_batch_size where they are -1, checks that the axes multiply to the world and that
///   global_batch_size = micro_batch_size x data ranks x accumulation
/// holds. Returns the accumulation: micro-batches a worker handles one after the other in a step.
/// Throws InputError with the arithmetic and the nearest numbers that work.
int64_t resolve_world(Config& config, int64_t world);

/// An option that two configs give different values.
struct Difference {
  std::string key;  ///< "section.key"
  std::string was;  ///< as TOML
  std::string is;
  bool may_change = false;  ///< a resumed run may differ in it: it does not change what is learned
  std::string hint;         ///< what to write to keep the old value where it followed from others; often empty
};

/// Differences between the config a checkpoint was written with and the one that wants to resume it, in the order of
/// the table. Compare resolved configs (after resolve_world).
std::vector<Difference> differences(const Config& was, const Config& is);

/// Names as in the config file.
std::string_view name_of(Device value);
std::string_view name_of(Precision value);
std::string_view name_of(Recompute value);
std::string_view name_of(Offload value);
std::string_view name_of(LrScheduleName value);
std::string_view name_of(Reproducible value);
std::string_view name_of(Shard value);
std::string_view name_of(Quantize value);
std::string_view name_of(CommBackend value);

}  // namespace trireme::config
