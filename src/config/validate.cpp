#include "config/validate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/named_path.h"
#include "describe/divisors.h"

namespace trireme::config {
namespace {

class Checks {
 public:
  explicit Checks(const std::set<std::string>& bad) : bad_(bad) {}

  /// The message when `wrong`, unless one of the keys that it is about is already known to be bad.
  template <typename... Args>
  void require(bool holds, std::initializer_list<const char*> keys, fmt::format_string<Args...> format,
               Args&&... args) {
    const bool known = std::any_of(keys.begin(), keys.end(), [&](const char* key) { return bad_.contains(key); });
    if (!holds && !known) faults.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  std::vector<std::string> faults;

 private:
  const std::set<std::string>& bad_;
};

void check_schedule(const Config& config, Checks& checks) {
  const LrScheduleConfig& schedule = config.lr_schedule;
  const int64_t steps = schedule.steps, warmup = schedule.warmup_steps, decay = schedule.decay_steps;
  checks.require(warmup <= steps, {"lr_schedule.warmup_steps", "lr_schedule.steps", "train.steps"},
                 "lr_schedule.warmup_steps = {} is more than lr_schedule.steps = {}; at most {} works", warmup, steps,
                 steps);
  if (schedule.name == LrScheduleName::constant || schedule.name == LrScheduleName::inverse_sqrt) {
    checks.require(decay == 0, {"lr_schedule.decay_steps", "lr_schedule.name"},
                   "lr_schedule.decay_steps = {} needs a shape to decay along, and lr_schedule.name is \"{}\"; take "
                   "\"cosine\" or \"linear\", or 0 decay steps",
                   decay, name_of(schedule.name));
  } else if (warmup <= steps) {
    checks.require(
        warmup + decay <= steps,
        {"lr_schedule.decay_steps", "lr_schedule.warmup_steps", "lr_schedule.steps", "train.steps"},
        "lr_schedule.warmup_steps + lr_schedule.decay_steps = {} + {} is more than lr_schedule.steps = {}; at most "
        "{} decay steps fit",
        warmup, decay, steps, steps - warmup);
  }
}

void check_links(const Config& config, Checks& checks) {
  for (const auto& [axis, link] :
       {std::pair("shard", config.comm.emulate.shard), std::pair("second_shard", config.comm.emulate.second_shard),
        std::pair("replicate", config.comm.emulate.replicate)}) {
    const std::string stem = fmt::format("comm.emulate.{}.", axis);
    checks.require(link.hardware.empty() || link.gb_per_s == 0,
                   {(stem + "hardware").c_str(), (stem + "gb_per_s").c_str()},
                   "{0}hardware = \"{1}\" and {0}gb_per_s = {2} both give a bandwidth; leave one out", stem,
                   link.hardware, link.gb_per_s);
  }
  const LinkConfig& second = config.comm.emulate.second_shard;
  const bool emulated = second.gb_per_s > 0 || second.latency_us > 0 || !second.hardware.empty();
  checks.require(!emulated || config.parallel.reshard_after_forward.group > 0,
                 {"comm.emulate.second_shard.gb_per_s", "comm.emulate.second_shard.latency_us",
                  "comm.emulate.second_shard.hardware", "parallel.reshard_after_forward"},
                 "comm.emulate.second_shard is a link of a second shard, and there is none; "
                 "parallel.reshard_after_forward = 2, or more, makes one");
}

void check_parallel(const Config& config, Checks& checks) {
  const ParallelConfig& parallel = config.parallel;
  const ParallelConfig standard;
  const std::string_view shard = name_of(parallel.shard);
  checks.require(parallel.shard != Shard::none || parallel.shard_size <= 1, {"parallel.shard", "parallel.shard_size"},
                 "parallel.shard_size = {} divides nothing with parallel.shard = \"none\"; \"optimizer\", "
                 "\"gradients\" and \"parameters\" divide something",
                 parallel.shard_size);
  std::vector<std::string> axes = parallel.order;
  std::sort(axes.begin(), axes.end());
  const bool named = axes.size() == 1 && (axes[0] == "default" || axes[0] == "megatron");
  checks.require(
      named || axes == std::vector<std::string>{"context", "expert", "pipeline", "replicate", "shard", "tensor"},
      {"parallel.order"},
      "parallel.order = [{}]: \"default\" and \"megatron\" work, or each of tensor, context, pipeline, shard, "
      "replicate "
      "and expert once, innermost first",
      fmt::join(parallel.order, ", "));
  const bool gathers = parallel.shard == Shard::parameters;
  checks.require(gathers || parallel.prefetch == standard.prefetch, {"parallel.shard", "parallel.prefetch"},
                 "parallel.prefetch = {} gathers ahead, and with parallel.shard = \"{}\" all weights are there; "
                 "\"parameters\" gathers them",
                 parallel.prefetch, shard);
  const Reshard& reshard = parallel.reshard_after_forward;
  checks.require(gathers || reshard == standard.reshard_after_forward,
                 {"parallel.shard", "parallel.reshard_after_forward"},
                 "parallel.reshard_after_forward = {} keeps gathered weights, and with parallel.shard = \"{}\" all "
                 "weights are there; \"parameters\" gathers them",
                 reshard.group > 0 ? fmt::format("{}", reshard.group) : "false", shard);
  checks.require(gathers || parallel.shard == Shard::gradients || parallel.reduce_every_micro_batch,
                 {"parallel.shard", "parallel.reduce_every_micro_batch"},
                 "parallel.reduce_every_micro_batch = false keeps gradients whole, and with parallel.shard = \"{}\" "
                 "they always are; \"gradients\" and \"parameters\" divide them",
                 shard);
}

// What travels rounded between ranks.
void check_quantized(const Config& config, Checks& checks) {
  const ParallelConfig& parallel = config.parallel;
  const ParallelConfig standard;
  const bool weights = parallel.quantize_weights != Quantize::none;
  const bool gradients = parallel.quantize_gradients != Quantize::none;
  const std::string_view shard = name_of(parallel.shard);
  checks.require(
      !weights || parallel.shard == Shard::parameters, {"parallel.shard", "parallel.quantize_weights"},
      "parallel.quantize_weights = \"{}\" is for weights that are gathered, and with parallel.shard = \"{}\" "
      "all weights are there; \"parameters\" gathers them",
      name_of(parallel.quantize_weights), shard);
  checks.require(
      !gradients || parallel.shard != Shard::none, {"parallel.shard", "parallel.quantize_gradients"},
      "parallel.quantize_gradients = \"{}\" sends each rank its share of the gradients, and with parallel.shard "
      "= \"none\" there are no shares; \"optimizer\", \"gradients\" and \"parameters\" go with it",
      name_of(parallel.quantize_gradients));
  checks.require(
      !gradients || config.run.reproducible != Reproducible::any_workers,
      {"run.reproducible", "parallel.quantize_gradients"},
      "parallel.quantize_gradients = \"{}\" rounds what each rank sends, so that the number of ranks changes "
      "the sums, and run.reproducible = \"any_workers\" asks that it does not; \"layout\" goes with it",
      name_of(parallel.quantize_gradients));
  checks.require(
      !weights || config.run.reproducible != Reproducible::any_workers,
      {"run.reproducible", "parallel.quantize_weights"},
      "parallel.quantize_weights = \"{}\" rounds in blocks that begin where a rank's rows begin, so that the "
      "number of ranks changes the weights, and run.reproducible = \"any_workers\" asks that it does not; "
      "\"layout\" goes with it",
      name_of(parallel.quantize_weights));
  checks.require(!(weights || gradients) || config.train.precision != Precision::fp64,
                 {"train.precision", "parallel.quantize_weights", "parallel.quantize_gradients"},
                 "train.precision = \"fp64\" is for exact sums, and parallel.quantize_weights and "
                 "parallel.quantize_gradients round to 8 bits or 4; \"fp32\", \"bf16\" and \"fp16\" go with them");
  checks.require(!gradients || config.train.gradient_dtype == "fp32",
                 {"train.gradient_dtype", "parallel.quantize_gradients"},
                 "parallel.quantize_gradients = \"{}\" rounds fp32 gradients for their way, and train.gradient_dtype = "
                 "\"{}\" has rounded them already; \"fp32\" goes with it",
                 name_of(parallel.quantize_gradients), config.train.gradient_dtype);
  checks.require(
      !gradients || !config.optimizer.in_backward, {"optimizer.in_backward", "parallel.quantize_gradients"},
      "parallel.quantize_gradients = \"{}\" keeps gradients until all have come, and optimizer.in_backward = "
      "true gives them up; false goes with it",
      name_of(parallel.quantize_gradients));
  checks.require(!gradients || config.comm.check != CommCheck::all, {"comm.check", "parallel.quantize_gradients"},
                 "comm.check = \"all\" looks for NaN in what ranks exchange, and parallel.quantize_gradients = \"{}\" "
                 "sends bytes; comm.check = \"shapes\" goes with it",
                 name_of(parallel.quantize_gradients));
  checks.require(parallel.quantize_block % 2 == 0, {"parallel.quantize_block"},
                 "parallel.quantize_block = {} is odd, and blocks have an even number of elements; {} or {} work",
                 parallel.quantize_block, parallel.quantize_block - 1, parallel.quantize_block + 1);
  checks.require(weights || gradients || parallel.quantize_block == standard.quantize_block,
                 {"parallel.quantize_block", "parallel.quantize_weights", "parallel.quantize_gradients"},
                 "parallel.quantize_block = {} is given, and nothing travels quantised; parallel.quantize_weights = "
                 "\"int8\" or parallel.quantize_gradients = \"int8\" or \"int4\" go with it",
                 parallel.quantize_block);
  checks.require(gradients || !parallel.quantize_error_feedback,
                 {"parallel.quantize_error_feedback", "parallel.quantize_gradients"},
                 "parallel.quantize_error_feedback = true keeps what rounding of gradients loses, and "
                 "parallel.quantize_gradients = \"none\" rounds none; \"int8\" and \"int4\" go with it");
  checks.require(!parallel.quantize_error_feedback || config.train.precision != Precision::fp16,
                 {"parallel.quantize_error_feedback", "train.precision"},
                 "parallel.quantize_error_feedback = true adds what was lost to the next step's gradients, and with "
                 "train.precision = \"fp16\" the loss scale between the two may change; \"bf16\" and \"fp32\" go with "
                 "it");
}

void check_batch(const Config& config, Checks& checks) {
  const int64_t micro = config.train.micro_batch_size, global = config.train.global_batch_size;
  checks.require(global == -1 || global % micro == 0, {"train.micro_batch_size", "train.global_batch_size"},
                 "train.global_batch_size = {} is not a multiple of train.micro_batch_size = {}; {} is. It also has to "
                 "be a multiple "
                 "of micro batch x workers",
                 global, micro, describe::either(describe::nearest_multiples(micro, global)));
  const BatchRampConfig& ramp = config.batch_ramp;
  if (ramp.start == 0) {
    checks.require(ramp.increment == 0 && ramp.samples == 0,
                   {"batch_ramp.start", "batch_ramp.increment", "batch_ramp.samples"},
                   "batch_ramp.increment = {} and batch_ramp.samples = {} need batch_ramp.start, the sequences of the "
                   "first step",
                   ramp.increment, ramp.samples);
    return;
  }
  checks.require(
      ramp.increment > 0 && ramp.samples > 0, {"batch_ramp.start", "batch_ramp.increment", "batch_ramp.samples"},
      "batch_ramp.start = {} needs batch_ramp.increment and batch_ramp.samples above 0, and they are {} and {}",
      ramp.start, ramp.increment, ramp.samples);
  checks.require(global != -1, {"train.global_batch_size"},
                 "batch_ramp.start = {} needs train.global_batch_size, the size that the batch grows to", ramp.start);
  if (global == -1 || ramp.increment <= 0) return;
  checks.require(ramp.start <= global, {"batch_ramp.start", "train.global_batch_size"},
                 "batch_ramp.start = {} is more than train.global_batch_size = {}; at most {} works", ramp.start,
                 global, global);
  checks.require(
      ramp.start > global || (global - ramp.start) % ramp.increment == 0,
      {"batch_ramp.start", "batch_ramp.increment", "train.global_batch_size"},
      "batch_ramp.increment = {} does not lead from batch_ramp.start = {} to train.global_batch_size = {}; {}",
      ramp.increment, ramp.start, global, describe::what_divides(global - ramp.start, ramp.increment));
}

void check_update_in_backward(const Config& config, Checks& checks) {
  if (!config.optimizer.in_backward) return;
  const std::string_view before = "optimizer.in_backward = true updates weights before all gradients are known";
  checks.require(config.train.clip_grad_norm == 0, {"optimizer.in_backward", "train.clip_grad_norm"},
                 "{}, and train.clip_grad_norm = {} needs the norm of all; train.clip_grad_norm = 0 goes with it",
                 before, config.train.clip_grad_norm);
  checks.require(config.spike_guard.factor == 0, {"optimizer.in_backward", "spike_guard.factor"},
                 "{}, and spike_guard.factor = {} skips steps by the norm of all; 0 goes with it", before,
                 config.spike_guard.factor);
  checks.require(config.train.precision != Precision::fp16, {"optimizer.in_backward", "train.precision"},
                 "{}, and train.precision = \"fp16\" skips steps to find its loss scale; \"bf16\" goes with it",
                 before);
  checks.require(
      config.run.reproducible != Reproducible::any_workers, {"optimizer.in_backward", "run.reproducible"},
      "optimizer.in_backward = true uses gradients at once, and run.reproducible = \"any_workers\" keeps them "
      "for its tree of sums; \"layout\" goes with it");
  checks.require(
      config.parallel.reduce_every_micro_batch, {"optimizer.in_backward", "parallel.reduce_every_micro_batch"},
      "parallel.reduce_every_micro_batch = false keeps gradients, which optimizer.in_backward = true gives up "
      "at once; true goes with it");
  checks.require(
      config.batch_ramp.start == 0, {"optimizer.in_backward", "batch_ramp.start"},
      "optimizer.in_backward = true needs steps of one micro-batch, and batch_ramp.start = {} makes them grow; "
      "0 goes with it",
      config.batch_ramp.start);
  checks.require(config.metrics.histograms == 0, {"optimizer.in_backward", "metrics.histograms"},
                 "optimizer.in_backward = true keeps no gradients, of which metrics.histograms = {} would tell; 0 goes "
                 "with it",
                 config.metrics.histograms);
}

void check_numbers(const Config& config, Checks& checks) {
  const Offload offload = config.train.activation_offload;
  checks.require(
      offload == Offload::none || config.train.recompute == Recompute::full,
      {"train.activation_offload", "train.recompute"},
      "train.activation_offload = \"{}\" moves the inputs of blocks, and train.recompute = \"{}\" keeps what is "
      "inside them as well; train.recompute = \"full\" goes with it",
      name_of(offload), name_of(config.train.recompute));
  checks.require(config.train.recompute_blocks == 1 || config.train.recompute == Recompute::full,
                 {"train.recompute_blocks", "train.recompute"},
                 "train.recompute_blocks = {} groups blocks that are recomputed whole, and train.recompute = \"{}\" "
                 "recomputes none whole; train.recompute = \"full\" goes with it",
                 config.train.recompute_blocks, name_of(config.train.recompute));
  checks.require(config.train.recompute_blocks <= std::max<int64_t>(config.model.layers, 1),
                 {"train.recompute_blocks", "model.layers"},
                 "train.recompute_blocks = {} is more than model.layers = {}; at most {} works",
                 config.train.recompute_blocks, config.model.layers, config.model.layers);
  checks.require(
      offload != Offload::host || config.run.device == Device::cuda, {"train.activation_offload", "run.device"},
      "train.activation_offload = \"host\" moves activations into host memory, where those of run.device = \"cpu\" "
      "are already; \"disk\" works");
  checks.require(config.train.precision == Precision::fp16 || config.loss_scale == LossScaleConfig{},
                 {"train.precision", "loss_scale.initial", "loss_scale.growth_factor", "loss_scale.backoff_factor",
                  "loss_scale.growth_interval"},
                 "[loss_scale] is given, and train.precision = \"{}\" does not scale the loss; \"fp16\" does",
                 name_of(config.train.precision));
  checks.require(
      config.optimizer.offload != Offload::host || config.run.device == Device::cpu || config.train.ema_decay == 0,
      {"optimizer.offload", "run.device", "train.ema_decay"},
      "optimizer.offload = \"host\" with run.device = \"{}\" has no moving average (train.ema_decay = {}) yet; 0 goes "
      "with it",
      name_of(config.run.device), config.train.ema_decay);
  const bool masters_move = config.train.precision == Precision::bf16 || config.train.precision == Precision::fp16;
  checks.require(
      config.optimizer.offload == Offload::none || !masters_move || config.parallel.quantize_weights == Quantize::none,
      {"optimizer.offload", "parallel.quantize_weights"},
      "parallel.quantize_weights = \"{}\" sends what it makes of master weights, which optimizer.offload = "
      "\"{}\" moves away; \"none\" for either works",
      name_of(config.parallel.quantize_weights), name_of(config.optimizer.offload));
  checks.require(
      config.optimizer.offload != Offload::disk || config.run.device == Device::cpu,
      {"optimizer.offload", "run.device"},
      "optimizer.offload = \"disk\" moves moments between a file and the memory of run.device = \"cpu\", not "
      "of \"{}\"; \"host\" works",
      name_of(config.run.device));
  checks.require(
      config.run.offload_dir.empty() || config.optimizer.offload == Offload::disk || offload == Offload::disk,
      {"run.offload_dir"},
      "run.offload_dir = {} is given, and nothing goes there; optimizer.offload = \"disk\" or "
      "train.activation_offload = \"disk\" does",
      config.run.offload_dir.string());
  check_update_in_backward(config, checks);
  const bool narrow = config.train.gradient_dtype == "bf16";
  checks.require(!narrow || config.train.precision == Precision::bf16, {"train.gradient_dtype", "train.precision"},
                 "train.gradient_dtype = \"bf16\" is the type that computes, and train.precision = \"{}\" computes in "
                 "another; \"fp32\" goes with it",
                 name_of(config.train.precision));
  checks.require(!narrow || config.run.reproducible != Reproducible::any_workers,
                 {"train.gradient_dtype", "run.reproducible"},
                 "train.gradient_dtype = \"bf16\" rounds the sum of each rank's micro-batches, and how many a rank has "
                 "depends on the number of workers; run.reproducible = \"any_workers\" goes with \"fp32\"");
  const double factor = config.spike_guard.factor;
  checks.require(
      factor == 0 || factor > 1, {"spike_guard.factor"},
      "spike_guard.factor = {} would skip half of all steps or more; 0 (no guard) and numbers above 1 work, such as 5",
      factor);
}

void check_profile(const Config& config, Checks& checks) {
  const ProfileConfig& profile = config.profile;
  if (profile.steps == 0) return;
  const int64_t last = config.train.stop_after > 0 ? config.train.stop_after : config.train.steps;
  checks.require(profile.warmup_steps + profile.steps <= last,
                 {"profile.steps", "profile.warmup_steps", "train.steps", "train.stop_after"},
                 "profile.steps = {} after profile.warmup_steps = {} need {} steps, and the run ends after step {}; "
                 "fewer of them, or more train.steps, work",
                 profile.steps, profile.warmup_steps, profile.steps + profile.warmup_steps, last);
  checks.require(config.run.device == Device::cpu, {"profile.steps", "run.device"},
                 "profile.steps = {} times calls, and with run.device = \"{}\" those return before their work is done; "
                 "\"cpu\" works",
                 profile.steps, name_of(config.run.device));
}

void check_data(const Config& config, Checks& checks) {
  const DataConfig& data = config.data;
  const bool generated = !data.generator.empty();
  checks.require(
      !generated || (data.text.empty() && data.eval_text.empty()), {"data.generator", "data.text", "data.eval_text"},
      "data.generator = \"{}\" writes its own text, so data.text and data.eval_text have to be empty", data.generator);
  checks.require(data.eval_text.empty() || !data.eval_path.empty(), {"data.eval_text", "data.eval_path"},
                 "data.eval_text is given but data.eval_path, the folder that it is prepared into, is not");
  checks.require(data.eval_path.empty() || data.path != data.eval_path, {"data.eval_path", "data.path"},
                 "data.eval_path is data.path, {}: held-out text has to be another", data.path.string());
  if (generated || !data.text.empty()) {
    checks.require(
        data.vocab <= config.model.vocab, {"data.vocab", "model.vocab"},
        "data.vocab = {} is more than model.vocab = {}: the embedding needs a row for every token; make them equal",
        data.vocab, config.model.vocab);
    checks.require(
        data.vocab >= 257, {"data.vocab", "model.vocab"},
        "model.vocab = {} is too small for a byte-level tokenizer, which has 256 bytes and a special token; at "
        "least 257 works",
        config.model.vocab);
  }
}

void check_eval(const Config& config, Checks& checks) {
  for (const auto& [key, texts] : {std::pair("eval.sets", config.eval.sets), {"eval.choices", config.eval.choices}})
    for (std::string& fault : named_path_faults(key, texts)) checks.faults.push_back(std::move(fault));
  for (const std::string& text : config.eval.sets) {
    const NamedPath named = to_named_path(text);
    checks.require(named.path != config.data.path, {"data.path"},
                   "eval.sets has {}, which is data.path: held-out text has to be another", text);
  }
}

}  // namespace

std::vector<std::string> cross_check(const Config& config, const std::set<std::string>& bad) {
  Checks checks(bad);
  const ModelConfig& model = config.model;
  describe::ModelShape shape = model;
  if (bad.contains("model.heads")) shape.heads = 0;  // 0 takes part in no check
  if (bad.contains("model.kv_heads")) shape.kv_heads = 0;
  if (bad.contains("model.head_dim")) shape.head_dim = 0;
  checks.faults = describe::shape_faults(shape);
  checks.require(config.train.seq_len <= model.max_seq_len, {"train.seq_len", "model.max_seq_len"},
                 "train.seq_len = {} is longer than model.max_seq_len = {}; at most {} works", config.train.seq_len,
                 model.max_seq_len, model.max_seq_len);
  checks.require(config.train.stop_after <= config.train.steps, {"train.stop_after", "train.steps"},
                 "train.stop_after = {} is after the last step, train.steps = {}; 0 to {} work",
                 config.train.stop_after, config.train.steps, config.train.steps);
  check_batch(config, checks);
  check_links(config, checks);
  check_numbers(config, checks);
  check_parallel(config, checks);
  check_quantized(config, checks);
  check_schedule(config, checks);
  checks.require(
      config.metrics.histograms == 0 || config.metrics.tensorboard, {"metrics.histograms", "metrics.tensorboard"},
      "metrics.histograms = {} needs metrics.tensorboard = true, since histograms are written to TensorBoard's "
      "files alone; or 0 for none",
      config.metrics.histograms);
  check_profile(config, checks);
  check_data(config, checks);
  check_eval(config, checks);
  return std::move(checks.faults);
}

}  // namespace trireme::config
