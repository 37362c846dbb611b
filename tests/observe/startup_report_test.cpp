// The start-up report and the memory estimate. Catches: arithmetic that does not hold, a line that is missing or says
// what is not so (tied head, one worker, no held-out text).
#include "observe/startup_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "describe/matmul_plan.h"
#include "observe/memory_estimate.h"

namespace trireme::observe {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(BatchArithmetic, Text) {
  EXPECT_EQ(batch_arithmetic(8, 2, 2, 512),
            "global batch 32 sequences = 8 micro x 2 data ranks x 2 accumulation = 16,384 tokens a step");
  EXPECT_EQ(batch_arithmetic(1, 1, 1, 1),
            "global batch 1 sequence = 1 micro x 1 data rank x 1 accumulation = 1 token a step");
}

config::Config small() {
  config::Config config;
  config.run.dir = "runs/small";
  config.model.layers = 2;
  config.model.hidden = 64;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.head_dim = 16;
  config.model.ffn = 128;
  config.model.vocab = 1000;
  config.model.max_seq_len = 32;
  config.model.tied = true;
  config.data.path = "data/train";
  config.data.eval_path = "data/eval";
  config.train.seq_len = 32;
  config.train.micro_batch_size = 4;
  config.train.global_batch_size = 16;
  config.train.steps = 1000;
  config.parallel.data = 2;
  config.lr_schedule.warmup_steps = 100;
  config.lr_schedule.steps = 1000;
  config.lr_schedule.decay_steps = 900;
  return config;
}

StartupReport full() {
  StartupReport report;
  report.version = "0.1.0";
  report.torch = "2.13.0";
  report.host = "box";
  report.cores = 2;
  report.threads = 1;
  report.instruction_set = "avx512";
  report.memory_bytes = int64_t{8} << 30;
  report.workers = 2;
  report.matmul_flops_per_second = 2.1e12;
  report.matmul_size = 2048;
  report.config = small();
  report.accumulation = 2;
  report.train_documents = 12;
  report.train_tokens = 320001;
  report.train_bytes = 1280004;
  report.held_out = {{{"", "data/eval"}, 1, 5000, 20000}, {{"wiki", "data/wiki"}, 3, 200, 700}};
  report.choices = {{{"arc", "arc.jsonl"}, 1}, {{"mmlu", "m.jsonl"}, 1200}};
  return report;
}

TEST(StartupReport, SaysWhatIsSo) {
  const std::string text = to_text(full());
  // Parameters by hand: embedding 64000; a block's attention 64*64*2 + 2*32*64 = 12288, feed-forward 3*64*128 = 24576.
  const char* rows[] = {
      "0.1.0, LibTorch 2.13.0\n",
      "box, 2 cores, 8.00 GiB memory, avx512 kernels\n",
      "2 workers with 1 thread each\n",
      "matrix products in bf16: 2.10TFLOP/s at 2048 x 2048 x 2048, all workers at once\n",
      "llama, 138,048 parameters\n",
      "embedding      64,000   46.4%\n",
      "attention      24,576   17.8%\n",
      "feed-forward   49,152   35.6%\n",
      "norms             320    0.2%\n",
      "head                0    0.0%  tied: it is the embedding's weight\n",
      "global batch 16 sequences = 4 micro x 2 data ranks x 2 accumulation = 512 tokens a step\n",
      "PaLM, appendix B",
      "bf16, gradients fp32, recompute none\n",
      "12 documents, 320,001 tokens, 1.22 MiB of text (4.00 bytes a token)\n",
      "the run sees 512,000 tokens = 1.60 epochs\n",
      "1 document, 5,000 tokens, 19.5 KiB of text (4.00 bytes a token)\n",
      "Held-out    wiki=data/wiki\n",
      "Questions   arc=arc.jsonl, 1 question\n",
      "Questions   mmlu=m.jsonl, 1,200 questions\n",
      "3 documents, 200 tokens, 700 B of text (3.50 bytes a token)\n",
      "1,000 steps\n",
      "100 steps of warm-up, 900 steps of cosine decay from 1.00e-03 to 1.00e-04\n",
      "adamw, beta 0.9 and 0.95, eps 1e-08, weight decay 0.1, gradient norm clipped at 1\n",
      "every 500 steps, over 5,200 held-out tokens and 1,201 questions\n",
      "every 500 steps, the last 3 kept\n",
      "runs/small: metrics.jsonl, checkpoints/\n",
  };
  for (const char* row : rows) EXPECT_THAT(text, HasSubstr(row));
  EXPECT_THAT(text, HasSubstr("and what libraries and their scratch take"));
  EXPECT_THAT(text, Not(HasSubstr("may be killed")));
  EXPECT_THAT(text, Not(HasSubstr("Resumed")));
  // 6 x (138048 - 0, the tied table multiplies as the head) + 12 x 2 x 4 x 16 x 32
  EXPECT_THAT(text, HasSubstr("877kFLOP a token, 449MFLOP a step"));
}

TEST(StartupReport, CountsLibrariesThatWereMeasured) {
  StartupReport report = full();
  const int64_t tensors = total_bytes(estimate_memory(report.config, report.threads));
  report.libraries_bytes = (int64_t{3} << 28) - tensors;
  report.mapped_bytes = int64_t{1} << 28;  // shared, so counted once
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("about 1.00 GiB a worker, 1.75 GiB in all\n"));
  EXPECT_THAT(text, testing::ContainsRegex("  libraries +76[0-9] MiB  what they keep"));
  EXPECT_THAT(text, testing::ContainsRegex("  files +256 MiB  code and data"));
  report.memory_bytes = int64_t{3} << 29;
  EXPECT_THAT(to_text(report), HasSubstr("more than this machine's 1.50 GiB"));
  report.memory_bytes = (int64_t{7} << 28) + 1;
  EXPECT_THAT(to_text(report), Not(HasSubstr("more than this machine's")));
}

TEST(StartupReport, Variations) {
  StartupReport report = full();
  report.workers = 1;
  report.threads = 2;
  report.matmul_flops_per_second = 0;
  report.held_out.clear();
  report.choices.clear();
  report.memory_bytes = 1 << 20;
  report.first_step = 400;
  report.resumed_from = "runs/small/checkpoints/step-00000400";
  report.config.train.stop_after = 500;
  report.config.lr_schedule.decay_steps = 300;
  report.config.eval.interval = 0;
  report.config.checkpoint.interval = 0;
  report.config.checkpoint.keep = 0;
  report.config.metrics.interval = 1;
  report.config.train.clip_grad_norm = 0;
  const std::string text = to_text(report);
  const char* rows[] = {
      "1 worker with 2 threads\n",
      "not measured here\n",
      "the run may be killed",
      "train.recompute = \"full\"",
      "1,000 steps, this run stops after step 500, 400 done\n",
      "the run sees 256,000 tokens = 0.80 epochs\n",
      "100 steps of warm-up, 600 steps at 1.00e-03, 300 steps of cosine decay from 1.00e-03 to 1.00e-04\n",
      "no clipping\n",
      "every step\n",
      "after the last step, all kept\n",
      "Resumed     from runs/small/checkpoints/step-00000400\n"};
  for (const char* row : rows) EXPECT_THAT(text, HasSubstr(row));
  EXPECT_THAT(text, Not(HasSubstr("Held-out")));
  EXPECT_THAT(text, Not(HasSubstr("Evaluation")));
  report.config.lr_schedule.name = config::LrScheduleName::constant;
  report.config.lr_schedule.decay_steps = 0;
  EXPECT_THAT(to_text(report), HasSubstr("100 steps of warm-up, 900 steps at 1.00e-03\n"));
}

std::map<std::string, int64_t> estimate(config::Precision precision, config::Recompute recompute, int64_t vocab = 1000,
                                        int64_t product_threads = 0) {
  std::map<std::string, int64_t> result;
  describe::ModelShape shape = small().model;
  shape.vocab = vocab;
  const auto items = estimate_memory(shape, {.precision = precision,
                                             .recompute = recompute,
                                             .micro_batch_size = 4,
                                             .seq_len = 32,
                                             .product_threads = product_threads});
  for (const MemoryItem& item : items) {
    result[item.purpose] = item.bytes;
    EXPECT_FALSE(item.how.empty()) << item.purpose;
  }
  return result;
}

// What ZeRO++'s options take beside plain sharding (docs/parallelism.md); tests/end_to_end/test_zeropp.py measures it.
TEST(MemoryEstimate, QuantizedExchangesAndASecondShard) {
  const auto items = [](MemoryOptions options) {
    options.shard = config::Shard::parameters;
    options.shard_size = 4;
    std::map<std::string, double> result;
    for (const MemoryItem& item : estimate_memory(small().model, options))
      result[item.purpose] = static_cast<double>(item.bytes);
    return result;
  };
  const double all = 138048, ranks = 4;
  const auto plain = items({});
  EXPECT_EQ(plain.count("communication"), 0u);
  const double in_use = plain.at("weights") * ranks / 2;  // elements of the blocks in use and of the ends
  const auto weights = items({.quantize_weights = config::Quantize::int8});
  EXPECT_NEAR(weights.at("weights"), 2 * in_use, 8);
  EXPECT_NEAR(weights.at("communication"), 2 * in_use / ranks * (1 + 4.0 / 256), 8);
  const auto second = items({.second_shard_ranks = 2});
  const double blocks = all - 1000 * 64 - 64;  // without the embedding, which is the head too, and the last norm
  EXPECT_NEAR(second.at("weights"), 2 * in_use + 2 * blocks / 2, 8);
  const auto gradients = items({.quantize_gradients = config::Quantize::int4, .error_feedback = true});
  // One block's gradients in place of two, and what rounding lost of those that go to others.
  EXPECT_NEAR(gradients.at("gradients"), plain.at("gradients") - 4 * blocks / small().model.layers + 3 * all, 8);
  EXPECT_NEAR(gradients.at("communication"), 3 * (0.5 + 4.0 / 256) * 1001 * 64, 8);
}

// What tests/end_to_end/test_sharding.py measures.
TEST(MemoryEstimate, StateElsewhere) {
  const auto items = [](config::Precision precision, config::Offload state) {
    std::map<std::string, int64_t> result;
    for (const MemoryItem& item :
         estimate_memory(small().model,
                         {.precision = precision, .shard = config::Shard::parameters, .shard_size = 4, .state = state}))
      result[item.purpose] = item.bytes;
    return result;
  };
  const int64_t n = 138048 / 4, piece = 1 << 20;
  const auto plain = items(config::Precision::bf16, config::Offload::none);
  const auto host = items(config::Precision::bf16, config::Offload::host);
  const auto disk = items(config::Precision::bf16, config::Offload::disk);
  EXPECT_EQ(host.at("master weights"), 4 * n);
  EXPECT_EQ(host.at("moments"), 8 * n + piece * (4 + 2));
  EXPECT_EQ(disk.at("master weights"), 0);
  EXPECT_EQ(disk.at("moments"), 3 * 3 * 4 * piece);
  for (const auto& moved : {host, disk}) EXPECT_EQ(moved.at("weights"), plain.at("weights") + 2 * n);
  // In fp32 the masters are the weights, and stay.
  const auto fp32 = items(config::Precision::fp32, config::Offload::disk);
  EXPECT_EQ(fp32.at("master weights"), 4 * n);
  EXPECT_EQ(fp32.at("moments"), 3 * 2 * 4 * piece);
  EXPECT_EQ(fp32.at("weights"), items(config::Precision::fp32, config::Offload::none).at("weights"));
}

TEST(MemoryEstimate, WaysToLessAreThoseThatAreLeft) {
  config::Config config = small();
  EXPECT_THAT(ways_to_less_memory(config), HasSubstr("optimizer.offload = \"disk\" or a smaller model"));
  config.optimizer.offload = config::Offload::disk;
  EXPECT_THAT(ways_to_less_memory(config), Not(HasSubstr("offload = \"disk\"")));
}

TEST(MemoryEstimate, ByPurpose) {
  const int64_t n = 138048, tokens = 128;
  const auto bf16 = estimate(config::Precision::bf16, config::Recompute::none);
  EXPECT_EQ(bf16.at("weights"), 2 * n);
  EXPECT_EQ(bf16.at("master weights"), 4 * n);
  EXPECT_EQ(bf16.at("gradients"), 4 * n);
  EXPECT_EQ(bf16.at("moments"), 8 * n);
  // A block: 4 x 64 + (2 x 4 + 2 x 2) x 16 + 3 x 128 elements, and 4 + 2 floats, a token; one more row of 64 at the
  // end, and its norm, which the loss reads.
  EXPECT_EQ(bf16.at("activations"), tokens * (2 * (2 * 832 + 4 * 6) + 2 * 2 * 64 + 4));
  // 128 rows of 1000 logits, and the gradient of the hidden states.
  EXPECT_EQ(bf16.at("loss"), 128 * 2000 + tokens * 128);

  const auto fp32 = estimate(config::Precision::fp32, config::Recompute::none);
  EXPECT_EQ(fp32.count("master weights"), 0u);
  EXPECT_EQ(fp32.at("weights"), 4 * n);
  EXPECT_EQ(fp32.at("loss"), 128 * 4000 + tokens * 256);
  const auto fp64 = estimate(config::Precision::fp64, config::Recompute::none);
  EXPECT_EQ(fp64.at("moments"), 16 * n);
  const auto recompute = estimate(config::Precision::bf16, config::Recompute::full, 500);
  // In backward: the input of the first block, the second whole (with its input) but for what the down projection has
  // freed, and its output; beside them the gradients of the residual stream, of the activation and of its input.
  EXPECT_EQ(recompute.at("activations"), tokens * (2 * 64 + 2 * 832 + 4 * 6 + 2 * 64 - 2 * 128));
  EXPECT_EQ(recompute.at("workspace"), tokens * 2 * (64 + 3 * 128));
  EXPECT_EQ(recompute.count("loss"), 0u);
  // With our own products, whose scratch is more than the gradients of the activation's input, at those of the down
  // projection.
  const auto ours = estimate(config::Precision::bf16, config::Recompute::full, 100, 2);
  EXPECT_EQ(ours.at("activations"), tokens * (2 * 64 + 2 * 832 + 4 * 6 + 2 * 64));
  const int64_t scratch = describe::backward_scratch_bytes({tokens, 128, 64}, 2);
  EXPECT_EQ(ours.at("workspace"), tokens * 2 * (64 + 128) + scratch);
  EXPECT_GT(scratch, tokens * 2 * 128);
  EXPECT_EQ(estimate(config::Precision::fp32, config::Recompute::full, 500, 2),
            estimate(config::Precision::fp32, config::Recompute::full, 500))
      << "a library makes them";
}

}  // namespace
}  // namespace trireme::observe
