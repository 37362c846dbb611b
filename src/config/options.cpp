// The table of all options, in the order of the file that `trireme config --all` prints. Defaults stand in config.h.
#include <fmt/format.h>

#include "config/option.h"
#include "describe/architecture.h"
#include "describe/model_shape.h"

namespace trireme::config {
namespace {

using describe::ModelShape;
using describe::RopeScaling;

// Far above every real model, and low enough that products of three such numbers stay inside 64 bits.
constexpr double kMostWidth = 1 << 20;

void add_run(std::vector<Option>& table) {
  table.push_back(
      Option("run.dir", at(&Config::run, &RunConfig::dir),
             "Folder of the run: checkpoints, metrics, logs and the resolved config. A relative path starts at "
             "the working folder.")
          .otherwise("runs/ and the name of the config file")
          .changeable());
  table.push_back(
      Option("run.offload_dir", at(&Config::run, &RunConfig::offload_dir),
             "Folder of what is offloaded to disk (optimizer.offload, train.activation_offload), in files "
             "without a name, of which nothing stays: best on a local NVMe drive. A relative path starts at "
             "the working folder.")
          .otherwise("run.dir/offload")
          .changeable());
  table.push_back(
      Option("run.seed", at(&Config::run, &RunConfig::seed),
             "Seed of everything random: initial weights and the order of samples. The same seed gives the same "
             "numbers on any number of workers.")
          .at_least(0));
  table.push_back(Option("run.device", at(&Config::run, &RunConfig::device), "Where tensors live and compute runs."));
  table.push_back(
      Option("run.time_limit_minutes", at(&Config::run, &RunConfig::time_limit_minutes),
             "Wall-clock limit in minutes, from the start of the workers: when it is over, the step is finished, a "
             "checkpoint saved, and the program ends with exit code 5. 0: no limit.")
          .at_least(0)
          .changeable());
  table.push_back(
      Option("run.reproducible", at(&Config::run, &RunConfig::reproducible),
             "What gives the same weights to the last bit. layout: the same number of workers, threads and "
             "micro-batches, and the same parallel options. any_workers: "
             "any number of workers that is a power of two, at any level of parallel.shard, since gradients of "
             "micro-batches are summed in one tree whoever computes them. It costs speed: one thread a worker, and "
             "for each doubling of the micro-batches of a worker another copy of its gradients."));
}

/// " mine: what its author says." for each architecture that this program adds.
std::string registered_help() {
  std::string text;
  for (const describe::Architecture& own : describe::registered_architectures())
    text += fmt::format(" {}: {}", own.name, own.description.empty() ? "registered by this program." : own.description);
  return text;
}

/// " mine: window (tokens that attention looks back; 64)."
std::string own_options() {
  std::string text;
  for (const describe::Architecture& own : describe::registered_architectures()) {
    std::string list;
    for (const describe::ModelOption& option : own.options)
      list += fmt::format("{}{} ({}; {})", list.empty() ? "" : ", ", option.name, option.help, option.standard);
    if (!list.empty()) text += fmt::format(" {}: {}.", own.name, list);
  }
  return text;
}

void add_model(std::vector<Option>& table) {
  const auto size = [&](std::string key, int64_t ModelShape::*member, std::string help, std::string follows) {
    table.push_back(Option("model." + key, at(&Config::model, member), std::move(help))
                        .at_least(1)
                        .at_most(kMostWidth)
                        .otherwise(std::move(follows)));
  };
  table.push_back(Option("model.preset", at(&Config::model, &ModelConfig::preset),
                         "A model of known shape to start from; explicit keys override its numbers. Without a preset, "
                         "layers, hidden, heads, ffn and vocab have to be given.")
                      .one_of(describe::preset_names())
                      .required(quote("llama-7m"))
                      .changeable());  // a label: the numbers that it leads to may not change
  table.push_back(
      Option("model.architecture", at(&Config::model, &ModelShape::architecture),
             "Kind of decoder. llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases; with "
             "qkv_bias it is Qwen 2, with qk_norm Qwen 3, with sliding_window Mistral. gpt: GPT-2, with learned "
             "positions, LayerNorm, biases and GELU." +
                 registered_help())
          .one_of(describe::architecture_names())
          .hint("a model of one's own is known to the program that registers it")
          .otherwise("the preset's, or \"llama\""));
  table.push_back(
      Option("model.options", at(&Config::model, &ModelShape::options),
             "Numbers that only the architecture has, each \"name=number\"; llama has none." + own_options()));
  size("layers", &ModelShape::layers, "Transformer blocks.", "the preset's");
  size("hidden", &ModelShape::hidden, "Width of the residual stream.", "the preset's");
  size("heads", &ModelShape::heads, "Query heads.", "the preset's");
  size("kv_heads", &ModelShape::kv_heads,
       "Key and value heads; divides heads. Fewer than heads is grouped-query attention.",
       "the preset's; without one, or when the preset has as many as heads: model.heads");
  size("head_dim", &ModelShape::head_dim, "Features of a head; even where positions are rotary.",
       "the preset's; without one, or when hidden or heads is given: model.hidden / model.heads");
  size("ffn", &ModelShape::ffn, "Width inside the feed-forward block.",
       "the preset's; with architecture = \"gpt\": 4 x model.hidden");
  size("vocab", &ModelShape::vocab, "Rows of the embedding; at least the tokenizer's size.", "the preset's");
  table.push_back(Option("model.max_seq_len", at(&Config::model, &ModelShape::max_seq_len),
                         "Longest sequence that the model is made for, in tokens; gpt has so many learned positions.")
                      .at_least(1)
                      .at_most(1 << 30)
                      .otherwise("the preset's, or train.seq_len"));
  table.push_back(
      Option("model.tied", at(&Config::model, &ModelShape::tied), "The output head is the embedding's weight.")
          .otherwise("the preset's, or false"));
  table.push_back(Option("model.norm_eps", at(&Config::model, &ModelShape::norm_eps),
                         "Added to the mean square, or the variance, inside a norm, against division by zero.")
                      .above(0)
                      .below(1)
                      .otherwise("the preset's, or 1e-5"));
  table.push_back(
      Option("model.rope_theta", at(&Config::model, &ModelShape::rope_theta), "Base of the rotary frequencies.")
          .above(1)
          .otherwise("the preset's, or 10000.0"));
  table.push_back(Option("model.qkv_bias", at(&Config::model, &ModelShape::qkv_bias),
                         "Biases of the query, key and value projections of a llama, as Qwen 2 has them.")
                      .otherwise("the preset's, or false"));
  table.push_back(Option("model.qk_norm", at(&Config::model, &ModelShape::qk_norm),
                         "RMSNorm of every query and key head of a llama before rotation, as Qwen 3 has it.")
                      .otherwise("the preset's, or false"));
  table.push_back(Option("model.sliding_window", at(&Config::model, &ModelShape::sliding_window),
                         "Tokens that attention looks back, the token itself included, as in Mistral 7B. 0: all.")
                      .at_least(0)
                      .at_most(1 << 30)
                      .otherwise("the preset's, or 0"));
  table.push_back(
      Option("model.logit_softcap", at(&Config::model, &ModelShape::logit_softcap),
             "Logits are cap * tanh(logits / cap), which keeps them within +-cap; Gemma 2 has 30. 0: as they "
             "are.")
          .at_least(0)
          .otherwise("the preset's, or 0.0"));
  table.push_back(Option("model.dropout", at(&Config::model, &ModelShape::dropout),
                         "Share of elements dropped in training: of the embedding, of attention weights, and of what "
                         "each layer adds to the residual stream. The masks follow from run.seed and the sample, so "
                         "they are the same for any number of workers. With dropout attention writes its score matrix "
                         "out, which takes memory with the square of train.seq_len.")
                      .at_least(0)
                      .below(1)
                      .otherwise("the preset's, or 0.0"));
  table.push_back(Option("model.rope_scaling.type", at(&Config::model, &ModelShape::rope_scaling, &RopeScaling::type),
                         "How rotary frequencies are stretched. llama3: as Llama 3.1; linear: all alike (position "
                         "interpolation); ntk: by a larger base; yarn: by how often a feature turns, with sharper "
                         "attention.")
                      .one_of({"llama3", "linear", "ntk", "yarn"})
                      .otherwise("the preset's, or \"llama3\""));
  const auto rope = [&](std::string key, auto member, std::string help, std::string standard) {
    table.push_back(
        Option("model.rope_scaling." + key, at(&Config::model, &ModelShape::rope_scaling, member), std::move(help))
            .above(0)
            .otherwise("the preset's, or " + standard));
  };
  rope("factor", &RopeScaling::factor,
       "Contexts longer by this: low rotary frequencies are divided by it. 1.0: no scaling.", "1.0");
  rope("low_freq_factor", &RopeScaling::low_freq_factor,
       "llama3: wavelengths longer than original_max_seq_len / low_freq_factor are scaled in full.", "1.0");
  rope("high_freq_factor", &RopeScaling::high_freq_factor,
       "llama3: wavelengths shorter than original_max_seq_len / high_freq_factor are not scaled; those between are "
       "interpolated.",
       "4.0");
  rope("beta_fast", &RopeScaling::beta_fast,
       "yarn: features that turn more often than this within original_max_seq_len are not scaled.", "32.0");
  rope("beta_slow", &RopeScaling::beta_slow,
       "yarn: features that turn less often than this within original_max_seq_len are scaled in full; those between "
       "are interpolated.",
       "1.0");
  rope("original_max_seq_len", &RopeScaling::original_max_seq_len,
       "Context, in tokens, that the model had before the frequencies were scaled.", "8192");
}

void add_data(std::vector<Option>& table) {
  table.push_back(Option("data.path", at(&Config::data, &DataConfig::path),
                         "Folder of prepared token shards to train on (`trireme data prepare` writes one).")
                      .required(quote("../data/sotu/train"))
                      .changeable());
  table.push_back(Option("data.eval_path", at(&Config::data, &DataConfig::eval_path),
                         "Folder of prepared token shards of held-out text. Empty: no evaluation.")
                      .changeable());
  table.push_back(
      Option("data.text", at(&Config::data, &DataConfig::text),
             "Text files, folders or globs. When data.path does not exist, a tokenizer is trained on them and "
             "they are prepared into it. Empty: data.path has to exist.")
          .changeable());
  table.push_back(Option("data.eval_text", at(&Config::data, &DataConfig::eval_text),
                         "The same for data.eval_path; the tokenizer is that of data.path.")
                      .changeable());
  table.push_back(
      Option("data.text_field", at(&Config::data, &DataConfig::text_field),
             "Field of the lines of .jsonl files in data.text and data.eval_text that holds a document's text.")
          .changeable());
  table.push_back(
      Option("data.vocab", at(&Config::data, &DataConfig::vocab),
             "Size of the tokenizer that is trained on first use: 256 bytes, merges, and the special token.")
          .at_least(257)
          .at_most(kMostWidth)
          .or_special(0)
          .otherwise("model.vocab")
          .changeable());
  table.push_back(
      Option("data.generator", at(&Config::data, &DataConfig::generator),
             "A text that the program writes itself in place of data.text and data.eval_text, so that a first run "
             "needs no download. Empty: none.")
          .one_of({"synthetic-english"})
          .changeable());
}

void add_train(std::vector<Option>& table) {
  table.push_back(Option("train.steps", at(&Config::train, &TrainConfig::steps), "Optimizer steps of the whole run.")
                      .at_least(1)
                      .changeable());
  table.push_back(
      Option("train.stop_after", at(&Config::train, &TrainConfig::stop_after),
             "Save and end with exit code 0 after this step, without touching the schedule; a later run goes on. "
             "0: run to train.steps.")
          .at_least(0)
          .changeable());
  table.push_back(
      Option("train.seq_len", at(&Config::train, &TrainConfig::seq_len), "Length of a training sequence in tokens.")
          .at_least(1)
          .at_most(1 << 30));
  table.push_back(Option("train.micro_batch_size", at(&Config::train, &TrainConfig::micro_batch_size),
                         "Sequences that a worker handles at once; memory grows with it.")
                      .at_least(1)
                      .at_most(kMostWidth)
                      .changeable());
  table.push_back(Option("train.global_batch_size", at(&Config::train, &TrainConfig::global_batch_size),
                         "Sequences in a step over all workers: micro_batch_size x data ranks x accumulation, and the "
                         "accumulation follows. -1: micro_batch_size x data ranks.")
                      .at_least(1)
                      .at_most(1LL << 32)
                      .or_special(-1));
  table.push_back(
      Option("train.precision", at(&Config::train, &TrainConfig::precision),
             "Element type of the compute. bf16 and fp16 keep master weights, gradients, their reduction and "
             "the optimizer in fp32, and fp16 scales the loss ([loss_scale]); fp32 and fp64 use one type "
             "for everything.")
          .refuses("fp8", "bf16, fp16, fp32 and fp64 work"));
  table.push_back(Option("train.frozen", at(&Config::train, &TrainConfig::frozen),
                         "Weights that stay as they are, and have no gradient and no moments: patterns of their names "
                         "with * for any characters, as [\"embed.weight\", \"blocks.0.*\"]; `trireme inspect RUN "
                         "--tensors` lists the names."));
  table.push_back(
      Option("train.gradient_dtype", at(&Config::train, &TrainConfig::gradient_dtype),
             "Element type in which gradients are kept, accumulated over micro-batches and exchanged; a run "
             "in fp64 uses fp64. bf16 halves their memory and their exchange: the ranks' gradients are "
             "still summed in fp32, and rounded once an axis; so is each micro-batch that is added.")
          .one_of({"fp32", "bf16"})
          .refuses("fp16", "fp32 and bf16 work"));
  table.push_back(Option("train.clip_grad_norm", at(&Config::train, &TrainConfig::clip_grad_norm),
                         "Gradients are scaled down to this global L2 norm when theirs is larger. 0: never.")
                      .at_least(0));
  table.push_back(Option("train.recompute", at(&Config::train, &TrainConfig::recompute),
                         "What backward recomputes instead of keeping: none; selective (the outputs of norms and "
                         "activations, which cost little); or full (each block keeps its input only: least memory, "
                         "about a third more compute). The numbers are the same in every bit.")
                      .changeable());
  table.push_back(Option("train.recompute_blocks", at(&Config::train, &TrainConfig::recompute_blocks),
                         "With train.recompute = \"full\": how many blocks are recomputed together; only the input of "
                         "the first is kept, and backward holds all of them at a time. 0: the square root of "
                         "model.layers. It pays for deep models (docs/training.md). The numbers are the same in every "
                         "bit.")
                      .at_least(0)
                      .changeable());
  table.push_back(
      Option("train.activation_offload", at(&Config::train, &TrainConfig::activation_offload),
             "Where the inputs of blocks wait for backward with train.recompute = \"full\". none: where they "
             "are; host: a device's in host memory; disk: in a nameless file in run.offload_dir. The numbers "
             "are the same in every bit.")
          .changeable());
  table.push_back(Option("train.document_mask", at(&Config::train, &TrainConfig::document_mask),
                         "Attention does not cross documents: a token sees back to the end-of-text token before its "
                         "document, and positions start there. Evaluation does the same."));
  table.push_back(Option("train.mask_document_starts", at(&Config::train, &TrainConfig::mask_document_starts),
                         "The first token of a document is no label, since nothing before it tells what it will be "
                         "(Megatron's --eod-mask-loss). Evaluation counts every token all the same."));
  table.push_back(Option("train.z_loss", at(&Config::train, &TrainConfig::z_loss),
                         "Coefficient of z-loss: the squared log of the softmax's denominator is added to the loss, "
                         "which keeps logits from drifting; PaLM has 1e-4. 0: none.")
                      .at_least(0));
  table.push_back(Option("train.ema_decay", at(&Config::train, &TrainConfig::ema_decay),
                         "Keep an exponential moving average of the weights: after each update it moves by 1 - "
                         "ema_decay of the way. It is evaluated beside the weights, and `--ema` of eval, generate and "
                         "convert takes it. 0: none.")
                      .at_least(0)
                      .below(1));
}

void add_batch_ramp(std::vector<Option>& table) {
  table.push_back(Option("batch_ramp.start", at(&Config::batch_ramp, &BatchRampConfig::start),
                         "Sequences of the first step. 0: every step has train.global_batch_size.")
                      .at_least(0)
                      .at_most(1LL << 32));
  table.push_back(Option("batch_ramp.increment", at(&Config::batch_ramp, &BatchRampConfig::increment),
                         "Sequences that a step has more than those before it, each time the batch grows.")
                      .at_least(0)
                      .at_most(1LL << 32));
  table.push_back(Option("batch_ramp.samples", at(&Config::batch_ramp, &BatchRampConfig::samples),
                         "Sequences seen until the batch has grown to train.global_batch_size, in equal stretches.")
                      .at_least(0)
                      .at_most(1LL << 60));
}

void add_loss_scale(std::vector<Option>& table) {
  table.push_back(Option("loss_scale.initial", at(&Config::loss_scale, &LossScaleConfig::initial),
                         "First factor of the loss, which lifts small fp16 gradients out of the zeros.")
                      .at_least(1)
                      .at_most(0x1p32));
  table.push_back(Option("loss_scale.growth_factor", at(&Config::loss_scale, &LossScaleConfig::growth_factor),
                         "The scale grows by this after growth_interval sound steps in a row. 1.0: never.")
                      .at_least(1)
                      .at_most(1024));
  table.push_back(Option("loss_scale.backoff_factor", at(&Config::loss_scale, &LossScaleConfig::backoff_factor),
                         "The scale falls to this share of it, but not below 1, when a gradient is not finite; that "
                         "step is skipped.")
                      .above(0)
                      .below(1));
  table.push_back(Option("loss_scale.growth_interval", at(&Config::loss_scale, &LossScaleConfig::growth_interval),
                         "Sound steps in a row before the scale grows.")
                      .at_least(1));
}

void add_spike_guard(std::vector<Option>& table) {
  table.push_back(Option("spike_guard.factor", at(&Config::spike_guard, &SpikeGuardConfig::factor),
                         "A step whose gradient norm is more than this times the median of the last "
                         "spike_guard.window steps is skipped: weights and moments stay. 0: no guard.")
                      .at_least(0)
                      .changeable());
  table.push_back(Option("spike_guard.window", at(&Config::spike_guard, &SpikeGuardConfig::window),
                         "Steps whose norms are remembered; the guard starts when there are as many.")
                      .at_least(1)
                      .at_most(100000)
                      .changeable());
}

void add_optimizer(std::vector<Option>& table) {
  table.push_back(
      Option("optimizer.name", at(&Config::optimizer, &OptimizerConfig::name),
             "The update rule. adamw: Loshchilov and Hutter, \"Decoupled weight decay regularization\", 2019.")
          .one_of({"adamw"}));
  table.push_back(Option("optimizer.lr", at(&Config::optimizer, &OptimizerConfig::lr), "Peak learning rate.").above(0));
  table.push_back(
      Option("optimizer.beta1", at(&Config::optimizer, &OptimizerConfig::beta1), "Decay of the first moment, a step.")
          .at_least(0)
          .below(1));
  table.push_back(
      Option("optimizer.beta2", at(&Config::optimizer, &OptimizerConfig::beta2), "Decay of the second moment, a step.")
          .at_least(0)
          .below(1));
  table.push_back(Option("optimizer.eps", at(&Config::optimizer, &OptimizerConfig::eps),
                         "Added to the root of the second moment, against division by zero.")
                      .above(0));
  table.push_back(Option("optimizer.weight_decay", at(&Config::optimizer, &OptimizerConfig::weight_decay),
                         "Share of a weight that a step at learning rate 1 takes away; norms are not decayed.")
                      .at_least(0));
  table.push_back(
      Option("optimizer.in_backward", at(&Config::optimizer, &OptimizerConfig::in_backward),
             "Update each unit's weights as soon as backward has its gradients, which are then given up: only those of "
             "two blocks and of the ends are there at a time. Needs train.clip_grad_norm = 0 and one micro-batch a "
             "step. The weights are the same in every bit; a step that is not finite ends the run, since it cannot be "
             "skipped.")
          .changeable());
  table.push_back(
      Option(
          "optimizer.offload", at(&Config::optimizer, &OptimizerConfig::offload),
          "Where the optimizer's state is between updates: moments, and master weights where train.precision is bf16 "
          "or fp16. none: where the run computes; host: in the host's memory, where the update is done then (on a "
          "CPU that is the same memory, counted apart); disk: in a nameless file in run.offload_dir, read and "
          "written around the page cache, a piece ahead of the update and a piece behind it. The numbers are the "
          "same in every bit.")
          .changeable());
}

void add_lr_schedule(std::vector<Option>& table) {
  table.push_back(
      Option("lr_schedule.name", at(&Config::lr_schedule, &LrScheduleConfig::name),
             "How the learning rate falls after warm-up: along a cosine, a line, or 1 - sqrt(q), over the last "
             "lr_schedule.decay_steps; wsd (warm-up, stable, decay): a line over the last tenth; inverse_sqrt: as "
             "1 / sqrt(step), without a horizon; constant: not at all."));
  table.push_back(Option("lr_schedule.warmup_steps", at(&Config::lr_schedule, &LrScheduleConfig::warmup_steps),
                         "Steps in which the learning rate rises linearly to optimizer.lr.")
                      .at_least(0)
                      .or_special(-1)
                      .otherwise("a tenth of lr_schedule.steps, at most 2000"));
  table.push_back(Option("lr_schedule.steps", at(&Config::lr_schedule, &LrScheduleConfig::steps),
                         "The horizon: the step at which the decay ends. Set it when train.steps may change later.")
                      .at_least(1)
                      .or_special(-1)
                      .otherwise("train.steps"));
  table.push_back(
      Option("lr_schedule.decay_steps", at(&Config::lr_schedule, &LrScheduleConfig::decay_steps),
             "Steps of the decay, the last before the horizon; between warm-up and decay the learning rate stays "
             "at optimizer.lr.")
          .at_least(0)
          .or_special(-1)
          .otherwise("all steps after warm-up; with \"wsd\" a tenth of lr_schedule.steps; 0 with \"constant\" and "
                     "\"inverse_sqrt\""));
  table.push_back(Option("lr_schedule.min_ratio", at(&Config::lr_schedule, &LrScheduleConfig::min_ratio),
                         "Learning rate at and after the horizon, as a share of optimizer.lr.")
                      .at_least(0)
                      .at_most(1));
}

void add_parallel(std::vector<Option>& table) {
  table.push_back(Option("parallel.data", at(&Config::parallel, &ParallelConfig::data),
                         "Workers that each handle a part of the batch. -1: all workers that the other axes leave.")
                      .at_least(1)
                      .at_most(kMostWidth)
                      .or_special(-1)
                      .changeable());
  table.push_back(
      Option("parallel.shard", at(&Config::parallel, &ParallelConfig::shard),
             "What data ranks divide among them in place of each keeping all of it. none: nothing (DDP). optimizer: "
             "master weights and moments (ZeRO-1). gradients: gradients too (ZeRO-2). parameters: weights too (ZeRO-3, "
             "FSDP): each block's are gathered before they are used. The numbers stay the same.")
          .changeable());
  table.push_back(Option("parallel.shard_size", at(&Config::parallel, &ParallelConfig::shard_size),
                         "Data ranks that divide one copy; it is replicated over the others, which sum their shards "
                         "(hybrid sharding). -1: all data ranks.")
                      .at_least(1)
                      .at_most(kMostWidth)
                      .or_special(-1)
                      .changeable());
  table.push_back(Option("parallel.prefetch", at(&Config::parallel, &ParallelConfig::prefetch),
                         "With shard = \"parameters\": units whose weights are gathered ahead of their use, and so "
                         "are there besides those in use. 0: each is waited for.")
                      .at_least(0)
                      .at_most(1024)
                      .changeable());
  table.push_back(
      Option(
          "parallel.reshard_after_forward", at(&Config::parallel, &ParallelConfig::reshard_after_forward),
          "With shard = \"parameters\": blocks give up their weights after forward and gather them again for "
          "backward. false: they keep them until the step ends, which costs memory and saves the second gather. A "
          "number: so many ranks that are neighbours among those that divide a copy divide a second shard of them in "
          "the type that computes, and what is gathered again until the step ends is gathered among those (FSDP2's "
          "number, hpZ of ZeRO++). It divides shard_size; if it is not smaller, all are neighbours, as with true.")
          .at_least(2)
          .at_most(kMostWidth)
          .changeable());
  table.push_back(
      Option("parallel.quantize_weights", at(&Config::parallel, &ParallelConfig::quantize_weights),
             "With shard = \"parameters\": how weights travel when they are gathered. none: in the type that computes. "
             "int8: in 8 bits an element, with a scale for each block of quantize_block elements (qwZ of ZeRO++). All "
             "ranks compute with the rounded weights; each keeps its own in float. Vectors (norms, biases) travel in "
             "float.")
          .one_of({"none", "int8"})
          .changeable());
  table.push_back(
      Option(
          "parallel.quantize_gradients", at(&Config::parallel, &ParallelConfig::quantize_gradients),
          "With a shard level other than none: how contributions to gradients travel. none: in float. int8, int4: in "
          "8 or 4 bits an element, with scales as above, and summed in float where they arrive (qgZ of ZeRO++). With "
          "copies of shards the sums are rounded once more on their way between copies, and once on their way back. "
          "Vectors (norms, biases) travel in float.")
          .changeable());
  table.push_back(Option("parallel.quantize_block", at(&Config::parallel, &ParallelConfig::quantize_block),
                         "Elements that share a scale, of 4 bytes, where weights or gradients travel quantised: fewer "
                         "make the error smaller and the bytes more. Even.")
                      .at_least(16)
                      .at_most(65536)
                      .changeable());
  table.push_back(
      Option("parallel.quantize_error_feedback", at(&Config::parallel, &ParallelConfig::quantize_error_feedback),
             "With quantize_gradients: what rounding lost is kept, in float, and added to what is sent next, so that "
             "it is not lost for good. It takes 4 bytes for each parameter that is trained, on every rank: it is not "
             "divided. It is not in checkpoints (a resumed run starts without it), and what is left of a step that is "
             "skipped is forgotten.")
          .changeable());
  table.push_back(
      Option("parallel.reduce_every_micro_batch", at(&Config::parallel, &ParallelConfig::reduce_every_micro_batch),
             "With shard = \"gradients\" or \"parameters\": gradients are exchanged after each micro-batch, and a "
             "rank keeps its shard alone. false: they are kept whole and exchanged once a step.")
          .changeable());
  table.push_back(
      Option("parallel.check_replicas", at(&Config::parallel, &ParallelConfig::check_replicas),
             "Steps between comparisons of what ranks have to hold alike (weights and moments, by hashes): a "
             "difference ends the run, names the parameter and the rank, and nothing of it is saved. 0: "
             "never.")
          .at_least(0)
          .changeable());
  const auto axis = [&](std::string key, int64_t ParallelConfig::*member, std::string help, std::string why) {
    table.push_back(Option("parallel." + key, at(&Config::parallel, member), std::move(help))
                        .only_default(std::move(why))
                        .changeable());
  };
  axis("tensor", &ParallelConfig::tensor, "Workers that divide each matrix.", "tensor parallelism is not built yet");
  axis("context", &ParallelConfig::context, "Workers that divide each sequence.",
       "context parallelism is not built yet");
  axis("pipeline", &ParallelConfig::pipeline, "Workers that divide the layers.",
       "pipeline parallelism is not built yet");
  axis("expert", &ParallelConfig::expert, "Workers that divide the experts.", "mixtures of experts are not built yet");
  table.push_back(Option("parallel.order", at(&Config::parallel, &ParallelConfig::order),
                         "How ranks are numbered over the axes: [\"default\"] (tensor, context, pipeline, shard, "
                         "replicate, expert), [\"megatron\"] (tensor, context, expert, shard, replicate, pipeline), or "
                         "all six, innermost first: neighbours differ in the first axis that is larger than 1.")
                      .changeable());
  table.push_back(Option("parallel.schedule", at(&Config::parallel, &ParallelConfig::schedule),
                         "Order of forward and backward passes in a pipeline.")
                      .only_default("pipeline parallelism is not built yet")
                      .changeable());
  axis("virtual_stages", &ParallelConfig::virtual_stages, "Stages of the pipeline that each of its workers holds.",
       "pipeline parallelism is not built yet");
}

void add_link(std::vector<Option>& table, const std::string& axis, LinkConfig EmulateConfig::*link) {
  const std::string stem = "comm.emulate." + axis + ".";
  const auto to = [link](auto member) { return at(&Config::comm, &CommConfig::emulate, link, member); };
  table.push_back(Option(stem + "gb_per_s", to(&LinkConfig::gb_per_s),
                         "Makes operations of this axis last as long as a link of so many GB/s (1e9 bytes) in each "
                         "direction of each worker would need, by the ring formulas, beside compute. 0: no limit.")
                      .at_least(0)
                      .changeable());
  table.push_back(Option(stem + "latency_us", to(&LinkConfig::latency_us),
                         "Microseconds that each step of such a ring takes besides.")
                      .at_least(0)
                      .changeable());
  table.push_back(Option(stem + "hardware", to(&LinkConfig::hardware),
                         "In place of gb_per_s, an accelerator of `trireme plan --list`: its fast links while "
                         "the axis fits in their domain, its network beyond. \"\": none.")
                      .changeable());
}

void add_running(std::vector<Option>& table) {
  table.push_back(
      Option("comm.backend", at(&Config::comm, &CommConfig::backend),
             "How workers exchange tensors. shm: shared memory of one machine. mpi: an MPI library, on one or several "
             "machines; mpirun starts the workers. nccl: NCCL between the GPUs of run.device = \"cuda\", on one or "
             "several machines. auto: nccl with \"cuda\", otherwise shm.")
          .refuses("gloo", "auto and shm work on one machine, mpi on several")
          .changeable());
  table.push_back(
      Option(
          "comm.timeout_s", at(&Config::comm, &CommConfig::timeout_s),
          "Seconds that a worker waits for the others in one exchange, and for the next batch of data, before it fails "
          "and names what is missing. At the start it waits for the others for at least 60 s.")
          .at_least(1)
          .at_most(86400)
          .changeable());
  table.push_back(
      Option("comm.check", at(&Config::comm, &CommConfig::check),
             "What workers compare when they exchange tensors. calls: operation, operator, type, counts. "
             "shapes: also the shapes of the tensors. all: also that nothing that is summed is NaN, so that "
             "a NaN is told on the worker where it comes from; a loss scale that looks for its limit makes "
             "some on purpose.")
          .changeable());
  table.push_back(Option("comm.flight_recorder", at(&Config::comm, &CommConfig::flight_recorder),
                         "Operations of each worker that are kept in run.dir/flight, for what is told after a failure "
                         "and `trireme inspect RUN --flight`; about 128 bytes each. 0: none.")
                      .at_least(0)
                      .at_most(1 << 20)
                      .changeable());
  add_link(table, "shard", &EmulateConfig::shard);
  add_link(table, "second_shard", &EmulateConfig::second_shard);
  add_link(table, "replicate", &EmulateConfig::replicate);
  table.push_back(Option("checkpoint.interval", at(&Config::checkpoint, &CheckpointConfig::interval),
                         "Steps between checkpoints; the last step always saves. 0: only the last step.")
                      .at_least(0)
                      .changeable());
  table.push_back(Option("checkpoint.keep", at(&Config::checkpoint, &CheckpointConfig::keep),
                         "Newest checkpoints that are kept; older ones are deleted. 0: all.")
                      .at_least(0)
                      .changeable());
  table.push_back(
      Option("checkpoint.resume", at(&Config::checkpoint, &CheckpointConfig::resume),
             "Go on from the newest complete checkpoint of run.dir. false: a run.dir that holds checkpoints is "
             "refused.")
          .changeable());
  table.push_back(
      Option("checkpoint.load", at(&Config::checkpoint, &CheckpointConfig::load),
             "A checkpoint of another run whose weights this one starts from, when run.dir has none to resume. "
             "A relative path starts at the working folder. Empty: weights are drawn from run.seed.")
          .changeable());
  table.push_back(Option("eval.interval", at(&Config::eval, &EvalConfig::interval),
                         "Steps between evaluations, of data.eval_path, eval.sets and eval.choices; there is one after "
                         "the last step too. 0: "
                         "never.")
                      .at_least(0)
                      .changeable());
  table.push_back(Option("eval.tokens", at(&Config::eval, &EvalConfig::tokens),
                         "At most so many tokens of each held-out set. 0: the whole text.")
                      .at_least(0)
                      .changeable());
  table.push_back(
      Option("eval.sets", at(&Config::eval, &EvalConfig::sets),
             "More held-out sets besides data.eval_path, as \"NAME=FOLDER\" of prepared token shards; their metrics "
             "end in /NAME. A relative folder starts at the folder of the config file.")
          .changeable());
  table.push_back(
      Option("eval.choices", at(&Config::eval, &EvalConfig::choices),
             "Files of multiple-choice questions, as \"NAME=FILE\" of JSON Lines with question, choices and answer; "
             "eval_acc/NAME and eval_acc_norm/NAME are the shares answered right. A relative file starts at the folder "
             "of the config file.")
          .changeable());
  table.push_back(Option("metrics.interval", at(&Config::metrics, &MetricsConfig::interval),
                         "Steps between lines of metrics, on the terminal and in metrics.jsonl. 1: every step.")
                      .at_least(1)
                      .changeable());
  table.push_back(Option("metrics.layer_grad_norms", at(&Config::metrics, &MetricsConfig::layer_grad_norms),
                         "Add the gradient norm of each layer to metrics.jsonl.")
                      .changeable());
  table.push_back(Option("metrics.tensorboard", at(&Config::metrics, &MetricsConfig::tensorboard),
                         "Also write TensorBoard event files: tensorboard --logdir RUN/tensorboard.")
                      .changeable());
  table.push_back(Option("metrics.histograms", at(&Config::metrics, &MetricsConfig::histograms),
                         "Steps between TensorBoard histograms of each parameter's weights and gradients; needs "
                         "metrics.tensorboard. 0: never.")
                      .at_least(0)
                      .changeable());
  table.push_back(Option("profile.steps", at(&Config::profile, &ProfileConfig::steps),
                         "Steps of which every operation is timed: a table, RUN/profile/profile-rankN.json and a trace "
                         "for ui.perfetto.dev. `train --profile` sets it. 0: none.")
                      .at_least(0)
                      .at_most(1000)
                      .changeable());
  table.push_back(Option("profile.warmup_steps", at(&Config::profile, &ProfileConfig::warmup_steps),
                         "Steps before the first that is timed, counted from where this call of the program starts.")
                      .at_least(0)
                      .changeable());
  table.push_back(
      Option("memory.caching_allocator", at(&Config::memory, &MemoryConfig::caching_allocator),
             "Keep freed memory for the next step instead of giving it back to the system. Much faster; off it "
             "shows memory faults to tools.")
          .changeable());
}

}  // namespace

const std::vector<Section>& sections() {
  static const std::vector<Section> table = {
      {"run", "The run as a whole."},
      {"model", "The model: a preset, or its numbers, or both."},
      {"model.rope_scaling", "Rotary frequencies stretched for long contexts."},
      {"data", "What is trained on. Relative paths start at the folder of the config file."},
      {"train", "Steps, batch and numbers."},
      {"batch_ramp", "A batch that grows at the start."},
      {"loss_scale", "The scale of the loss in fp16, adapted while training."},
      {"spike_guard", "Steps that are not learned from."},
      {"optimizer", "The update rule."},
      {"lr_schedule", "The learning rate over time: warm-up, a plateau, decay."},
      {"parallel", "How the work is divided among workers. The axes multiply to the number of workers (--workers)."},
      {"comm", "Exchange between workers."},
      {"comm.emulate.shard",
       "A slower link, emulated: what the exchanges among ranks that divide a copy would cost elsewhere."},
      {"comm.emulate.second_shard",
       "The same for gathers of a second shard (parallel.reshard_after_forward with a number)."},
      {"comm.emulate.replicate",
       "The same for the sums over copies (with parallel.shard = \"none\": all exchange of gradients)."},
      {"checkpoint", "Saving and resuming."},
      {"eval", "Loss on held-out text, and multiple-choice questions."},
      {"metrics", "What is written while training."},
      {"profile", "Where the time of a step goes."},
      {"memory", "How memory is handled."},
  };
  return table;
}

const std::vector<Option>& options() {
  static const std::vector<Option> table = [] {
    std::vector<Option> all;
    add_run(all);
    add_model(all);
    add_data(all);
    add_train(all);
    add_batch_ramp(all);
    add_loss_scale(all);
    add_spike_guard(all);
    add_optimizer(all);
    add_lr_schedule(all);
    add_parallel(all);
    add_running(all);
    return all;
  }();
  return table;
}

}  // namespace trireme::config
