// Reading a config: every fault is found, all at once, each with its full key, both values and what works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "config/config.h"

namespace trireme::config {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr const char* kMinimal = "[model]\npreset = \"llama-7m\"\n[data]\npath = \"data\"\n";

std::vector<std::string> faults_of(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  try {
    parse_config(toml, "run.toml", "/folder", overrides);
  } catch (const InputError& error) {
    return error.faults();
  }
  return {};
}

Config minimal(const std::vector<std::string>& overrides = {}) {
  return parse_config(kMinimal, "run.toml", "/folder", overrides);
}

TEST(Load, FillsInWhatFollows) {
  const Config config = minimal({"train.steps=200"});
  EXPECT_EQ(config.model.hidden, 320);
  EXPECT_EQ(config.model.head_dim, 64);
  EXPECT_EQ(config.lr_schedule.steps, 200);
  EXPECT_EQ(config.lr_schedule.warmup_steps, 20);
  EXPECT_EQ(config.lr_schedule.decay_steps, 180);
  EXPECT_EQ(config.data.vocab, 4096);
  EXPECT_EQ(config.run.dir, std::filesystem::current_path() / "runs/run");
}

TEST(Load, OneLineOfEverySection) {
  const Config config = parse_config(R"(
run = { dir = "/some/where", seed = 7, device = "cuda", time_limit_minutes = 1.5 }
model = { layers = 2, hidden = 64, heads = 4, kv_heads = 2, ffn = 128, vocab = 300, max_seq_len = 128, tied = true, rope_scaling = { factor = 8 } }
data = { path = "../a/b", eval_path = "/c", text = "t/*.txt", eval_text = ["u", "/v"] }
train = { steps = 10, stop_after = 5, seq_len = 128, micro_batch_size = 3, global_batch_size = 12, precision = "fp64", clip_grad_norm = 0, recompute = "full" }
optimizer = { name = "adamw", lr = 1, beta1 = 0, beta2 = 0.5, eps = 1e-6, weight_decay = 0 }
lr_schedule = { name = "linear", warmup_steps = 1, steps = 20, decay_steps = 4, min_ratio = 0 }
parallel = { data = 2 }
comm = { backend = "shm", timeout_s = 5 }
checkpoint = { interval = 2, keep = 0, resume = false, load = "/k" }
eval = { interval = 3, tokens = 100, sets = ["wiki=../w", "a.b-c_1=/x=y"], choices = "arc=../a.jsonl" }
metrics = { interval = 1, layer_grad_norms = true }
memory = { caching_allocator = false }
)",
                                     "x/run.toml", "/folder");
  EXPECT_EQ(config.run.device, Device::cuda);
  EXPECT_EQ(config.run.time_limit_minutes, 1.5);
  EXPECT_EQ(config.model.head_dim, 16);
  EXPECT_EQ(config.model.rope_scaling.factor, 8);
  EXPECT_EQ(config.model.rope_scaling.original_max_seq_len, 8192);
  EXPECT_EQ(config.data.path, "/a/b");  // against the config file's folder
  EXPECT_EQ(config.data.eval_path, "/c");
  EXPECT_THAT(config.data.text, ElementsAre("/folder/t/*.txt"));
  EXPECT_THAT(config.data.eval_text, ElementsAre("/folder/u", "/v"));
  EXPECT_THAT(config.eval.sets, ElementsAre("wiki=/w", "a.b-c_1=/x=y"));
  EXPECT_THAT(config.eval.choices, ElementsAre("arc=/a.jsonl"));
  EXPECT_EQ(config.train.precision, Precision::fp64);
  EXPECT_EQ(config.train.recompute, Recompute::full);
  EXPECT_EQ(config.optimizer.lr, 1.0);  // an integer is a number
  EXPECT_EQ(config.lr_schedule.name, LrScheduleName::linear);
  EXPECT_EQ(config.lr_schedule.decay_steps, 4);
  EXPECT_EQ(config.comm.backend, CommBackend::shm);
  EXPECT_EQ(config.checkpoint.load, "/k");
  EXPECT_FALSE(config.checkpoint.resume);
  EXPECT_TRUE(config.metrics.layer_grad_norms);
  EXPECT_FALSE(config.memory.caching_allocator);
}

TEST(Load, PresetAndExplicitNumbers) {
  const struct {
    const char* name;
    std::vector<std::string> overrides;
    int64_t heads, kv_heads, head_dim, hidden;
  } rows[] = {
      {"preset alone", {"model.preset=llama3-8b"}, 32, 8, 128, 4096},
      {"more heads keep grouped kv heads", {"model.preset=llama3-8b", "model.heads=64"}, 64, 8, 64, 4096},
      {"more heads take kv heads along", {"model.preset=llama-7m", "model.heads=10"}, 10, 10, 32, 320},
      {"wider", {"model.preset=llama-7m", "model.hidden=640"}, 5, 5, 128, 640},
      {"free head_dim", {"model.preset=llama-7m", "model.hidden=256", "model.head_dim=64"}, 5, 5, 64, 256},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    const Config config = minimal(row.overrides);
    EXPECT_EQ(config.model.heads, row.heads);
    EXPECT_EQ(config.model.kv_heads, row.kv_heads);
    EXPECT_EQ(config.model.head_dim, row.head_dim);
    EXPECT_EQ(config.model.hidden, row.hidden);
  }
}

TEST(Overrides, TakeTomlAndBareWords) {
  const Config config =
      minimal({"run.dir=/runs/2024", "data.path = 7", "train.precision=\"fp32\"", "optimizer.lr=3e-4",
               "data.text=a b.txt", "data.eval_path=x=y", "checkpoint.resume=false", "train.steps=1_000",
               "train.steps=20", "data.eval_path=it's \"here\"", "model.rope_scaling={factor=4}"});
  EXPECT_EQ(config.run.dir, "/runs/2024");
  EXPECT_EQ(config.data.path, "/folder/7");
  EXPECT_EQ(config.train.precision, Precision::fp32);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_THAT(config.data.text, ElementsAre("/folder/a b.txt"));
  EXPECT_FALSE(config.checkpoint.resume);
  EXPECT_EQ(config.train.steps, 20);  // the last one counts
  EXPECT_EQ(config.data.eval_path, "/folder/it's \"here\"");
  EXPECT_EQ(config.model.rope_scaling.factor, 4);
  EXPECT_EQ(minimal({"data.eval_path="}).data.eval_path, "");
}

TEST(Overrides, MendAFaultOfTheFile) {
  EXPECT_THAT(faults_of(std::string(kMinimal) + "[train]\nsteps = \"ten\"\n", {"train.steps=10"}), IsEmpty());
}

TEST(Faults, EachWithItsKeyAndWhatWorks) {
  struct Row {
    const char* name;
    std::vector<std::string> overrides;
    const char* fault;  ///< the only one, or what it holds
  };
  const Row rows[] = {
      {"unknown key", {"train.step=5"}, "train.step (--set): there is no such option; did you mean train.steps?"},
      {"key of another section", {"train.lr=5"}, "did you mean optimizer.lr?"},
      {"key without a section", {"seq_len=5"}, "did you mean train.seq_len?"},
      {"slip in the section", {"trian.steps=5"}, "trian.steps (--set): there is no such option; did you mean"},
      {"section that is not there",
       {"banana.x=5"},
       "there is no such option, and no section banana; the sections are run, model"},
      {"far from everything", {"train.banana=5"}, "train has steps, stop_after, seq_len"},
      {"no equals sign", {"train.steps"}, "--set train.steps: expected section.key=value"},
      {"no key", {"=3"}, "expected section.key=value"},
      {"section as value", {"train=3"}, "train (--set): expected a section"},
      {"text for an integer",
       {"train.steps=ten"},
       "train.steps = \"ten\" (--set): expected an integer, found a string"},
      {"beyond an integer",
       {"train.steps=99999999999999999999"},
       "train.steps = 99999999999999999999 (--set): no integer"},
      {"beyond an integer, below",
       {"train.steps=-99999999999999999999"},
       "train.steps = -99999999999999999999 (--set): no integer"},
      {"no number", {"train.steps=1-2"}, "train.steps = \"1-2\" (--set): expected an integer, found a string"},
      {"nothing for an integer", {"train.steps="}, "train.steps = \"\" (--set): expected an integer, found a string"},
      {"fraction for an integer", {"train.steps=1e3"}, "found a number with a fraction; write 1000"},
      {"integer for a boolean", {"checkpoint.resume=1"}, "expected true or false, found an integer"},
      {"boolean for a number", {"optimizer.lr=true"}, "expected a number, found a boolean"},
      {"list with a number",
       {"data.text=[\"a\", 1]"},
       "expected a string or a list of strings, found a list with an integer in it"},
      {"table for a key", {"train.steps={a=1}"}, "expected an integer, found a table"},
      {"below the range", {"train.steps=0"}, "train.steps = 0 (--set): expected an integer of at least 1"},
      {"beside the special value", {"train.global_batch_size=-2"}, "at least 1 and at most 4294967296, or -1"},
      {"not below 1",
       {"optimizer.beta1=1"},
       "optimizer.beta1 = 1.0 (--set): expected a number of at least 0 and below 1"},
      {"nan", {"optimizer.lr=nan"}, "optimizer.lr = nan (--set): expected a number above 0"},
      {"inf", {"optimizer.lr=inf"}, "expected a number above 0"},
      {"zero micro batch", {"train.micro_batch_size=0"}, "train.micro_batch_size = 0"},
      {"unknown choice",
       {"train.precision=bf6"},
       "expected one of \"bf16\", \"fp16\", \"fp32\" or \"fp64\"; did you mean \"bf16\"?"},
      {"unknown preset", {"model.preset=llama3-9b"}, "did you mean \"llama3-8b\"?"},
      {"fp8", {"train.precision=fp8"}, "fp8 is not built yet; bf16, fp16, fp32 and fp64 work"},
      {"loss scale of bf16",
       {"loss_scale.initial=1024"},
       "[loss_scale] is given, and train.precision = \"bf16\" does not scale the loss; \"fp16\" does"},
      {"loss scale that rises when it should fall",
       {"train.precision=fp16", "loss_scale.backoff_factor=2"},
       "loss_scale.backoff_factor = 2.0 (--set): expected a number above 0 and below 1"},
      {"loss scale of zero", {"train.precision=fp16", "loss_scale.initial=0"}, "loss_scale.initial = 0.0"},
      {"spike guard that skips everything", {"spike_guard.factor=0.5"}, "spike_guard.factor = 0.5 would skip half"},
      {"average without an end",
       {"train.ema_decay=1"},
       "train.ema_decay = 1.0 (--set): expected a number of at least 0 and below 1"},
      {"z-loss that pushes away", {"train.z_loss=-1"}, "train.z_loss = -1.0"},
      {"dropout of everything",
       {"model.dropout=1"},
       "model.dropout = 1.0 (--set): expected a number of at least 0 and below 1"},
      {"window of less than nothing", {"model.sliding_window=-1"}, "model.sliding_window = -1"},
      {"ramp without a start", {"batch_ramp.increment=8"}, "batch_ramp.samples = 0 need batch_ramp.start"},
      {"ramp without steps",
       {"batch_ramp.start=8", "train.global_batch_size=32"},
       "batch_ramp.start = 8 needs batch_ramp.increment and batch_ramp.samples above 0, and they are 0 and 0"},
      {"ramp to nowhere",
       {"batch_ramp.start=8", "batch_ramp.increment=8", "batch_ramp.samples=100"},
       "batch_ramp.start = 8 needs train.global_batch_size"},
      {"ramp that overshoots",
       {"batch_ramp.start=64", "batch_ramp.increment=8", "batch_ramp.samples=100", "train.global_batch_size=32"},
       "batch_ramp.start = 64 is more than train.global_batch_size = 32"},
      {"ramp that misses",
       {"batch_ramp.start=8", "batch_ramp.increment=10", "batch_ramp.samples=100", "train.global_batch_size=32"},
       "batch_ramp.increment = 10 does not lead from batch_ramp.start = 8 to train.global_batch_size = 32; 8 or 12 do"},
      {"architecture", {"model.architecture=gtp"}, "did you mean \"gpt\"?"},
      {"gpt with groups",
       {"model.preset=gpt2", "model.kv_heads=4"},
       "model.kv_heads = 4 is not model.heads = 12, and model.architecture is \"gpt\""},
      {"gpt with heads of their own size",
       {"model.preset=gpt2", "model.head_dim=32"},
       "12 x 32 is not model.hidden = 768"},
      {"gpt with rotary positions",
       {"model.preset=gpt2", "model.rope_theta=5e5"},
       "rope_theta is the base of rotary positions"},
      {"gpt with a scaling", {"model.preset=gpt2", "model.rope_scaling.factor=2"}, "rope_scaling stretches rotary"},
      {"gpt with Qwen's norms", {"model.preset=gpt2", "model.qk_norm=true"}, "qk_norm normalises queries and keys"},
      {"gpt with a window", {"model.preset=gpt2", "model.sliding_window=8"}, "sliding_window limits"},
      {"key of another scaling",
       {"model.rope_scaling.factor=2", "model.rope_scaling.beta_fast=16"},
       "rope_scaling.beta_fast belongs to model.rope_scaling.type = \"yarn\", and the type is \"llama3\""},
      {"yarn's borders",
       {"model.rope_scaling.type=yarn", "model.rope_scaling.factor=2", "model.rope_scaling.beta_fast=1"},
       "beta_fast = 1 is not above"},
      {"scaling by nothing", {"model.rope_scaling.type=yarn"}, "factor = 1, which stretches nothing"},
      {"context of a linear scaling",
       {"model.rope_scaling.type=linear", "model.rope_scaling.factor=2", "model.rope_scaling.original_max_seq_len=512"},
       "original_max_seq_len belongs to"},
      {"unknown scaling",
       {"model.rope_scaling.type=dynamic"},
       "expected one of \"llama3\", \"linear\", \"ntk\" or \"yarn\""},
      {"fp16 gradients", {"train.gradient_dtype=fp16"}, "fp16 is not built yet; fp32 and bf16 work"},
      {"bf16 gradients of fp32 weights",
       {"train.gradient_dtype=bf16", "train.precision=fp32"},
       "train.gradient_dtype = \"bf16\" is the type that computes, and train.precision = \"fp32\""},
      {"bf16 gradients in a tree",
       {"train.gradient_dtype=bf16", "run.reproducible=any_workers"},
       "any_workers\" goes with \"fp32\""},
      {"offload without recomputation", {"train.activation_offload=disk"}, "train.recompute = \"full\" goes with it"},
      {"offload to where it is",
       {"train.activation_offload=host", "train.recompute=full"},
       "are already; \"disk\" works"},
      {"blocks together without recomputation",
       {"train.recompute_blocks=0"},
       "train.recompute_blocks = 0 groups blocks that are recomputed whole"},
      {"more blocks than there are",
       {"train.recompute_blocks=200", "train.recompute=full"},
       "train.recompute_blocks = 200 is more than model.layers"},
      {"soft cap", {"model.logit_softcap=-1"}, "model.logit_softcap = -1"},
      {"recompute", {"train.recompute=some"}, "expected one of \"none\", \"selective\" or \"full\""},
      {"shard", {"parallel.shard=weights"}, "\"none\", \"optimizer\", \"gradients\" or \"parameters\""},
      {"tensor",
       {"parallel.tensor=2"},
       "parallel.tensor = 2 (--set): only 1 works so far: tensor parallelism is not built yet"},
      {"context", {"parallel.context=2"}, "only 1 works so far"},
      {"pipeline", {"parallel.pipeline=2"}, "only 1 works so far"},
      {"expert", {"parallel.expert=2"}, "only 1 works so far"},
      {"virtual stages", {"parallel.virtual_stages=2"}, "only 1 works so far"},
      {"shard size", {"parallel.shard_size=2"}, "parallel.shard_size = 2 divides nothing"},
      {"shard size of none", {"parallel.shard_size=0", "parallel.shard=optimizer"}, "parallel.shard_size = 0"},
      {"prefetch", {"parallel.prefetch=2", "parallel.shard=gradients"}, "parallel.prefetch = 2 gathers ahead"},
      {"reshard", {"parallel.reshard_after_forward=false"}, "parallel.reshard_after_forward = false keeps"},
      {"reshard to a group", {"parallel.reshard_after_forward=2"}, "parallel.reshard_after_forward = 2 keeps"},
      {"reshard to one",
       {"parallel.reshard_after_forward=1", "parallel.shard=parameters"},
       "expected true, false or an integer of at least 2"},
      {"reshard to a text",
       {"parallel.reshard_after_forward=yes", "parallel.shard=parameters"},
       "expected true, false or an integer, found a string"},
      {"quantized weights that are not gathered",
       {"parallel.quantize_weights=int8", "parallel.shard=optimizer"},
       "\"parameters\" gathers them"},
      {"weights of 4 bits",
       {"parallel.quantize_weights=int4", "parallel.shard=parameters"},
       "expected one of \"none\" or \"int8\""},
      {"quantized gradients of whole copies", {"parallel.quantize_gradients=int8"}, "there are no shares"},
      {"quantized gradients and equal bits",
       {"parallel.quantize_gradients=int4", "parallel.shard=gradients", "run.reproducible=any_workers"},
       "\"layout\" goes with it"},
      {"quantized weights and equal bits",
       {"parallel.quantize_weights=int8", "parallel.shard=parameters", "run.reproducible=any_workers"},
       "blocks that begin where a rank's rows begin"},
      {"quantized fp64",
       {"parallel.quantize_gradients=int8", "parallel.shard=gradients", "train.precision=fp64"},
       "\"fp32\", \"bf16\" and \"fp16\" go with them"},
      {"quantized and looked at",
       {"parallel.quantize_gradients=int8", "parallel.shard=gradients", "comm.check=all"},
       "comm.check = \"shapes\" goes with it"},
      {"a link of no second shard",
       {"comm.emulate.second_shard.gb_per_s=1", "parallel.shard=parameters"},
       "comm.emulate.second_shard is a link of a second shard"},
      {"odd blocks",
       {"parallel.quantize_block=33", "parallel.quantize_gradients=int4", "parallel.shard=gradients"},
       "32 or 34 work"},
      {"blocks of nothing", {"parallel.quantize_block=64"}, "nothing travels quantised"},
      {"feedback of nothing", {"parallel.quantize_error_feedback=true"}, "rounds none"},
      {"feedback of scaled gradients",
       {"parallel.quantize_error_feedback=true", "parallel.quantize_gradients=int8", "parallel.shard=gradients",
        "train.precision=fp16"},
       "the loss scale between the two may change"},
      {"reduce",
       {"parallel.reduce_every_micro_batch=false", "parallel.shard=optimizer"},
       "with parallel.shard = \"optimizer\" they always are"},
      {"schedule", {"parallel.schedule=gpipe"}, "only \"1f1b\" works so far"},
      {"order",
       {"parallel.order=[\"data\"]"},
       "parallel.order = [data]: \"default\" and \"megatron\" work, or each of tensor"},
      {"gloo", {"comm.backend=gloo"}, "gloo is not built yet; auto and shm work on one machine, mpi on several"},
      {"kv heads",
       {"model.heads=16", "model.kv_heads=3"},
       "model.kv_heads = 3 does not divide model.heads = 16; 2 or 4 do"},
      {"heads", {"model.heads=7"}, "model.heads = 7 does not divide model.hidden = 320; 5 or 8 do"},
      {"odd head_dim", {"model.head_dim=33"}, "model.head_dim = 33 is odd"},
      {"long sequence",
       {"train.seq_len=2048"},
       "train.seq_len = 2048 is longer than model.max_seq_len = 1024; at most 1024"},
      {"stop after the end", {"train.steps=10", "train.stop_after=11"}, "train.stop_after = 11 is after the last step"},
      {"warm-up",
       {"train.steps=10", "lr_schedule.warmup_steps=11"},
       "lr_schedule.warmup_steps = 11 is more than lr_schedule.steps = 10"},
      {"decay",
       {"train.steps=10", "lr_schedule.warmup_steps=4", "lr_schedule.decay_steps=7"},
       "at most 6 decay steps fit"},
      {"decay of a constant",
       {"lr_schedule.name=constant", "lr_schedule.decay_steps=5"},
       "lr_schedule.decay_steps = 5 needs a shape"},
      {"batch",
       {"train.micro_batch_size=4", "train.global_batch_size=30"},
       "train.global_batch_size = 30 is not a multiple of train.micro_batch_size = 4; 28 or 32 is. It also has to "
       "be a multiple of micro batch x workers"},
      {"two sources of text",
       {"data.generator=synthetic-english", "data.text=a"},
       "data.text and data.eval_text have to be empty"},
      {"held-out text without a folder", {"data.eval_text=a"}, "data.eval_path, the folder"},
      {"held-out is training", {"data.eval_path=data"}, "held-out text has to be another"},
      {"set without a name",
       {"eval.sets=books/a b"},
       R"(eval.sets has "books/a b": expected NAME=PATH; write "a_b=books/a b")"},
      {"set with a broken name", {"eval.sets=a/b=c"}, "\"a_b=c\" would do"},
      {"set with an empty name", {"eval.sets=[\"=c\"]"}, R"("name=c" would do)"},
      {"set without a folder", {"eval.sets=wiki="}, R"(eval.sets has "wiki=": the path after '=' is missing)"},
      {"empty set", {"eval.sets=[\"\"]"}, "found an empty text"},
      {"two sets of a name", {"eval.sets=[\"a=b\", \"a=c\"]"}, R"(eval.sets has the name "a" twice)"},
      {"histograms for nobody", {"metrics.histograms=5"}, "metrics.histograms = 5 needs metrics.tensorboard = true"},
      {"histograms below never",
       {"metrics.histograms=-1", "metrics.tensorboard=true"},
       "expected an integer of at least 0"},
      {"profile beyond the run",
       {"train.steps=20", "train.stop_after=6", "profile.steps=4"},
       "profile.steps = 4 after profile.warmup_steps = 3 need 7 steps, and the run ends after step 6"},
      {"profile of what returns at once", {"profile.steps=1", "run.device=\"cuda\""}, "\"cpu\" works"},
      {"profile too long to look at", {"profile.steps=1001"}, "at most 1000"},
      {"questions without a name", {"eval.choices=a.jsonl"}, R"(write "a=a.jsonl")"},
      {"set is training", {"eval.sets=a=data"}, "eval.sets has a=/folder/data, which is data.path"},
      {"tokenizer larger than the model",
       {"data.text=a", "data.vocab=5000"},
       "data.vocab = 5000 is more than model.vocab = 4096"},
      {"vocabulary below bytes", {"data.text=a", "model.vocab=100"}, "model.vocab = 100 is too small"},
      {"generator", {"data.generator=shakespeare"}, "expected \"synthetic-english\""},
      {"rope",
       {"model.rope_scaling.factor=8", "model.rope_scaling.high_freq_factor=1"},
       "high_freq_factor = 1 is not above"},
      {"broken text", {"run.dir=\xff\xfe"}, "run.dir (--set): the value is not UTF-8 text"},
      {"line break", {"run.seed=1\nb=2"}, "run.seed"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(faults_of(kMinimal, row.overrides), ElementsAre(HasSubstr(row.fault)));
  }
}

TEST(Faults, AllAtOnceWithTheirLines) {
  const std::string toml =
      "[run]\n"
      "seed = -1\n"
      "[modl]\n"
      "layers = 3\n"
      "[model]\n"
      "layers = 2\n"
      "hidden = 64\n"
      "heads = 4\n"
      "kv_heads = 3\n"
      "[train]\n"
      "steps = \"many\"\n"
      "stop_after = 5\n"
      "seqlen = 128\n"
      "[[comm]]\n"
      "backend = \"shm\"\n";
  EXPECT_THAT(
      faults_of(toml, {"optimizer.lr=-1"}),
      testing::UnorderedElementsAre(
          AllOf(StartsWith("run.seed = -1 (run.toml:2):"), HasSubstr("at least 0")),
          StartsWith("[modl] (run.toml:3): there is no such section; did you mean [model]?"),
          StartsWith("train.steps = \"many\" (run.toml:11): expected an integer, found a string"),
          StartsWith("train.seqlen (run.toml:13): there is no such option; did you mean train.seq_len?"),
          AllOf(StartsWith("comm (run.toml:14): expected a section"), HasSubstr("found a list")),
          StartsWith("optimizer.lr = -1.0 (--set): expected a number above 0"), StartsWith("data.path is missing"),
          StartsWith("model.ffn, model.vocab are missing: give them, or a model.preset (llama-1m, "),
          "model.kv_heads = 3 does not divide model.heads = 4; 2 or 4 do"));
}

TEST(Faults, NothingFollowsFromAFaultAlreadyNamed) {
  // The wrong seq_len is reported once, and not compared with max_seq_len; a wrong preset hides what it would have
  // given.
  EXPECT_EQ(faults_of(kMinimal, {"train.seq_len=-5"}).size(), 1u);
  EXPECT_EQ(faults_of("[model]\npreset = \"lama\"\n[data]\npath = \"x\"").size(), 1u);
  EXPECT_EQ(faults_of(kMinimal, {"model.heads=-1"}).size(), 1u);
  // Two faults of one shape are two.
  EXPECT_EQ(faults_of(kMinimal, {"model.heads=3", "model.kv_heads=2"}).size(), 2u);
}

TEST(Faults, OfSyntaxNameLineAndColumn) {
  const struct {
    const char *name, *toml, *place;
  } rows[] = {
      {"no value", "[run]\nseed = \n", "run.toml:2:"},
      {"twice", "[run]\nseed = 1\nseed = 2\n", "run.toml:3:"},
      {"unclosed", "[run\n", "run.toml:1:"},
      {"not UTF-8", "[run]\ndir = \"\xff\"\n", "run.toml:2:"},
  };
  for (const auto& row : rows) {
    EXPECT_THAT(faults_of(row.toml), ElementsAre(AllOf(StartsWith(row.place), HasSubstr("this is not TOML"))))
        << row.name;
  }
}

TEST(Load, MissingFileNamesTheNearest) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("trireme-config-" + std::to_string(getpid()));
  make_directories(folder);
  write_file_durably(folder / "tiny.toml", kMinimal);
  const auto message = [](const std::filesystem::path& path) -> std::string {
    try {
      load_config(path);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(folder / "tny.toml"), HasSubstr("did you mean " + (folder / "tiny.toml").string() + "?"));
  EXPECT_THAT(message(folder), HasSubstr("is a folder"));
  EXPECT_THAT(message(folder / "none" / "x.toml"), HasSubstr("there is no config file"));
  EXPECT_EQ(load_config(folder / "tiny.toml").data.path, folder / "data");
  EXPECT_EQ(load_config(folder / "tiny.toml").run.dir, std::filesystem::current_path() / "runs" / "tiny");
  // A file of the working folder, which is named without one.
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  EXPECT_EQ(message("tiny.toml"), "");
  EXPECT_EQ(load_config("tiny.toml").data.path, folder / "data");
  std::filesystem::current_path(here);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme::config
