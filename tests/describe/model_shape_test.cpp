// Shapes, parameter counts and FLOPs against published numbers: catches a wrong column in the table of presets and a
// wrong term in the formulas.
#include "describe/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "describe/divisors.h"

namespace trireme::describe {
namespace {

TEST(Presets, HavePublishedParameterTotals) {
  // Totals as their authors' checkpoints hold them, not as the table says them.
  const struct {
    const char* name;
    int64_t total;
  } rows[] = {
      {"llama2-7b", 6'738'415'616},
      {"llama2-13b", 13'015'864'320},
      {"llama2-70b", 68'976'648'192},
      {"llama3-8b", 8'030'261'248},
      {"llama3-70b", 70'553'706'496},
      {"llama3.1-405b", 405'853'388'800},
      {"llama3.2-1b", 1'235'814'400},
      {"llama3.2-3b", 3'212'749'824},
      {"tinyllama-1.1b", 1'100'048'384},
      {"smollm2-135m", 134'515'008},
      {"smollm2-360m", 361'821'120},
      {"smollm2-1.7b", 1'711'376'384},
      // Counted by transformers 5.24 on its own configurations.
      {"gpt2", 124'439'808},
      {"gpt2-medium", 354'823'168},
      {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen3-0.6b", 596'049'920},
      {"qwen3-1.7b", 1'720'574'976},
      {"qwen3-4b", 4'022'468'096},
      {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},
      {"qwen3-32b", 32'762'123'264},
      {"mistral-7b-v0.1", 7'241'732'096},
      {"mistral-7b-v0.3", 7'248'023'552},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(count_parameters(preset(row.name).shape).total(), row.total);
  }
}

TEST(Presets, TableIsConsistent) {
  std::set<std::string_view> names;
  for (const Preset& preset : presets()) {
    SCOPED_TRACE(preset.name);
    EXPECT_TRUE(names.insert(preset.name).second) << "twice in the table";
    EXPECT_EQ(count_parameters(preset.shape).total(), preset.parameters);
    EXPECT_THAT(shape_faults(preset.shape), testing::IsEmpty());
    // Qwen 3 chooses the size of a head apart from the width.
    if (!preset.shape.qk_norm) {
      EXPECT_EQ(preset.shape.heads * preset.shape.head_dim, preset.shape.hidden);
    }
    EXPECT_FALSE(preset.source.empty());
  }
}

TEST(Presets, UnknownNameGetsTheNearest) {
  try {
    preset("llama3-8");
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean \"llama3-8b\"?"));
  }
}

TEST(Parameters, ByRoleOfAShapeCountedByHand) {
  ModelShape shape;
  shape.layers = 2, shape.hidden = 8, shape.heads = 4, shape.kv_heads = 2, shape.head_dim = 6, shape.ffn = 10,
  shape.vocab = 11;
  const ParameterCounts counts = count_parameters(shape);
  EXPECT_EQ(counts.embedding, 88);
  EXPECT_EQ(counts.attention, 2 * (8 * 24 + 2 * 8 * 12 + 24 * 8));
  EXPECT_EQ(counts.feed_forward, 2 * 3 * 80);
  EXPECT_EQ(counts.norm, 5 * 8);
  EXPECT_EQ(counts.head, 88);
  shape.tied = true;
  EXPECT_EQ(count_parameters(shape).head, 0);
  EXPECT_EQ(count_parameters(shape).total(), counts.total() - 88);
}

TEST(Flops, FollowTheNamedConvention) {
  // Llama 2 7B: 6 x (6,738,415,616 - 32,000 x 4096) + 12 x 32 x 4096 x 4096
  const ModelShape& free = preset("llama2-7b").shape;
  EXPECT_DOUBLE_EQ(model_flops_per_token(free, 4096), 6.0 * (6738415616.0 - 131072000.0) + 12.0 * 32 * 4096 * 4096);
  // Llama 3.2 1B is tied: the table counts once, as the head.
  const ModelShape& tied = preset("llama3.2-1b").shape;
  EXPECT_DOUBLE_EQ(model_flops_per_token(tied, 8192), 6.0 * 1235814400.0 + 12.0 * 16 * 2048 * 8192);
  EXPECT_DOUBLE_EQ(model_flops_per_token(tied, 8191, AttentionFlops::causal),
                   6.0 * 1235814400.0 + 12.0 * 16 * 2048 * 4096);
  // One token sees itself, with a mask or without.
  EXPECT_DOUBLE_EQ(model_flops_per_token(tied, 1), model_flops_per_token(tied, 1, AttentionFlops::causal));
}

TEST(Flops, AWindowShortensWhatAttentionSees) {
  ModelShape shape = preset("mistral-7b-v0.1").shape;
  const double matrices = 6.0 * (7241732096.0 - 131072000.0), a_token = 12.0 * 32 * 4096;
  EXPECT_DOUBLE_EQ(model_flops_per_token(shape, 8192), matrices + a_token * 4096);
  EXPECT_DOUBLE_EQ(model_flops_per_token(shape, 2048), matrices + a_token * 2048);
  // 5 tokens, window 3: they see 1, 2, 3, 3, 3.
  shape.sliding_window = 3;
  EXPECT_DOUBLE_EQ(model_flops_per_token(shape, 5, AttentionFlops::causal), matrices + a_token * 12.0 / 5);
}

TEST(Rope, HighAndLowFrequenciesAreStretchedAsEachTypeSays) {
  const auto ratio = [](const RopeScaling& scaling, size_t pair) {
    return rotary_frequencies(64, 10000, {})[pair] / rotary_frequencies(64, 10000, scaling)[pair];
  };
  EXPECT_DOUBLE_EQ(ratio({.type = "linear", .factor = 4}, 0), 4);
  EXPECT_DOUBLE_EQ(ratio({.type = "linear", .factor = 4}, 31), 4);
  EXPECT_DOUBLE_EQ(ratio({.type = "ntk", .factor = 4}, 0), 1);
  EXPECT_NEAR(ratio({.type = "ntk", .factor = 4}, 31), 4, 1e-12);
  EXPECT_DOUBLE_EQ(ratio({.type = "yarn", .factor = 4, .original_max_seq_len = 2048}, 0), 1);
  EXPECT_DOUBLE_EQ(ratio({.type = "yarn", .factor = 4, .original_max_seq_len = 2048}, 31), 4);
  EXPECT_NEAR(rotary_attention_factor({.type = "yarn", .factor = 4}), 1.138629436, 1e-9);
  EXPECT_DOUBLE_EQ(rotary_attention_factor({.type = "llama3", .factor = 4}), 1);
}

TEST(ShapeFaults, NameTheKeyBothNumbersAndWhatWorks) {
  ModelShape shape = preset("llama3-8b").shape;
  shape.heads = 16, shape.kv_heads = 3, shape.head_dim = 7;
  shape.rope_scaling = {.factor = 8, .low_freq_factor = 4, .high_freq_factor = 4, .original_max_seq_len = 8192};
  EXPECT_THAT(shape_faults(shape),
              testing::ElementsAre("model.kv_heads = 3 does not divide model.heads = 16; 2 or 4 do",
                                   testing::HasSubstr("model.head_dim = 7 is odd"),
                                   testing::HasSubstr("model.rope_scaling.high_freq_factor = 4 is not above")));
}

TEST(Divisors, NearestOnEitherSide) {
  using Numbers = std::vector<int64_t>;
  const struct {
    const char* name;
    Numbers found, expected;
  } rows[] = {
      {"between two", nearest_divisors(16, 3), {2, 4}},
      {"itself", nearest_divisors(16, 4), {4}},
      {"above all", nearest_divisors(16, 40), {16}},
      {"below all", nearest_divisors(7, 0), {1}},
      {"of a prime", nearest_divisors(7, 3), {1, 7}},
      {"of one", nearest_divisors(1, 5), {1}},
      {"multiples around", nearest_multiples(8, 30), {24, 32}},
      {"multiple itself", nearest_multiples(8, 32), {32}},
      {"multiple below one", nearest_multiples(8, 3), {8}},
  };
  for (const auto& row : rows) EXPECT_EQ(row.found, row.expected) << row.name;
  EXPECT_EQ(what_divides(16, 40), "16 does");
}

}  // namespace
}  // namespace trireme::describe
