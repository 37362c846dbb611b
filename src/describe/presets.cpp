// The table of known shapes. Numbers of released models are those of their published configurations.
#include <vector>

#include "base/error.h"
#include "describe/model_shape.h"

namespace trireme::describe {
namespace {

const RopeScaling kLlama31Rope{.factor = 8}, kLlama32Rope{.factor = 32};  // the rest is what RopeScaling starts with

constexpr std::string_view kOwn = "Trireme: a small Llama for a laptop or a test";
constexpr std::string_view kGpt2Sized =
    "Trireme: the width and depth of a GPT-2 with a Llama's block; GPT-2's vocabulary, padded";
constexpr std::string_view kLlama2 = "Touvron et al., Llama 2, 2023; meta-llama/Llama-2 config.json";
constexpr std::string_view kLlama3 =
    "Grattafiori et al., The Llama 3 Herd of Models, 2024, table 3; meta-llama/Meta-Llama-3 config.json";
constexpr std::string_view kLlama31 =
    "Grattafiori et al., The Llama 3 Herd of Models, 2024, table 3; meta-llama/Llama-3.1 config.json";
constexpr std::string_view kLlama32 = "meta-llama/Llama-3.2 config.json";
constexpr std::string_view kTinyLlama = "Zhang et al., TinyLlama, 2024; TinyLlama/TinyLlama_v1.1 config.json";
constexpr std::string_view kGpt2 =
    "Radford et al., Language models are unsupervised multitask learners, 2019; openai/gpt-2";
constexpr std::string_view kQwen25 = "Qwen team, Qwen2.5 technical report, 2025; Qwen/Qwen2.5 config.json";
constexpr std::string_view kQwen3 = "Qwen team, Qwen3 technical report, 2025, table 1; Qwen/Qwen3 config.json";
constexpr std::string_view kMistral = "Jiang et al., Mistral 7B, 2023; mistralai/Mistral-7B config.json";
constexpr std::string_view kSmolLm2 = "Allal et al., SmolLM2, 2025; HuggingFaceTB/SmolLM2 config.json";

/// What the columns of the table below leave out.
struct Family {
  std::string_view architecture = "llama";
  double norm_eps = 1e-5;
  bool qkv_bias = false, qk_norm = false;
  int64_t sliding_window = 0;
};
constexpr Family kLlama{}, kGpt{.architecture = "gpt"}, kQwen2Family{.norm_eps = 1e-6, .qkv_bias = true},
    kQwen3Family{.norm_eps = 1e-6, .qk_norm = true}, kMistralWindow{.sliding_window = 4096};

/// The columns of the table below, in the order in which papers give them.
struct Row {
  std::string_view name;
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_seq_len;
  bool tied;
  double rope_theta;
  RopeScaling rope_scaling;
  int64_t parameters;
  std::string_view source;
  Family family = kLlama;
};

// clang-format off
const Row kRows[] = {
    // name         layers hidden heads kv  dim    ffn   vocab  max_seq   tied     theta  scaling                parameters  source
    {"llama-1m",         3,   128,   4,  4,  32,   352,   4096,   1024,  true,    10000,           {},           1'127'296, kOwn},
    {"llama-7m",         5,   320,   5,  5,  64,   832,   4096,   1024,  true,    10000,           {},           7'355'840, kOwn},
    {"llama-30m",        6,   384,   6,  6,  64,  1024,  50304,   1024,  true,    10000,           {},          29'938'560, kGpt2Sized},
    {"llama-125m",      12,   768,  12, 12,  64,  2048,  50304,   2048,  true,    10000,           {},         123'587'328, kGpt2Sized},
    {"llama-350m",      24,  1024,  16, 16,  64,  2816,  50304,   2048,  true,    10000,           {},         359'842'816, kGpt2Sized},
    {"smollm2-135m",    30,   576,   9,  3,  64,  1536,  49152,   8192,  true,   100000,           {},         134'515'008, kSmolLm2},
    {"smollm2-360m",    32,   960,  15,  5,  64,  2560,  49152,   8192,  true,   100000,           {},         361'821'120, kSmolLm2},
    {"smollm2-1.7b",    24,  2048,  32, 32,  64,  8192,  49152,   8192,  true,   130000,           {},       1'711'376'384, kSmolLm2},
    {"tinyllama-1.1b",  22,  2048,  32,  4,  64,  5632,  32000,   2048, false,    10000,           {},       1'100'048'384, kTinyLlama},
    {"llama2-7b",       32,  4096,  32, 32, 128, 11008,  32000,   4096, false,    10000,           {},       6'738'415'616, kLlama2},
    {"llama2-13b",      40,  5120,  40, 40, 128, 13824,  32000,   4096, false,    10000,           {},      13'015'864'320, kLlama2},
    {"llama2-70b",      80,  8192,  64,  8, 128, 28672,  32000,   4096, false,    10000,           {},      68'976'648'192, kLlama2},
    {"llama3-8b",       32,  4096,  32,  8, 128, 14336, 128256,   8192, false,   500000,           {},       8'030'261'248, kLlama3},
    {"llama3-70b",      80,  8192,  64,  8, 128, 28672, 128256,   8192, false,   500000,           {},      70'553'706'496, kLlama3},
    {"llama3.1-8b",     32,  4096,  32,  8, 128, 14336, 128256, 131072, false,   500000, kLlama31Rope,       8'030'261'248, kLlama31},
    {"llama3.1-70b",    80,  8192,  64,  8, 128, 28672, 128256, 131072, false,   500000, kLlama31Rope,      70'553'706'496, kLlama31},
    {"llama3.1-405b",  126, 16384, 128,  8, 128, 53248, 128256, 131072, false,   500000, kLlama31Rope,     405'853'388'800, kLlama31},
    {"llama3.2-1b",     16,  2048,  32,  8,  64,  8192, 128256, 131072,  true,   500000, kLlama32Rope,       1'235'814'400, kLlama32},
    {"llama3.2-3b",     28,  3072,  24,  8, 128,  8192, 128256, 131072,  true,   500000, kLlama32Rope,       3'212'749'824, kLlama32},
    {"gpt2",            12,   768,  12, 12,  64,  3072,  50257,   1024,  true,    10000,           {},         124'439'808, kGpt2, kGpt},
    {"gpt2-medium",     24,  1024,  16, 16,  64,  4096,  50257,   1024,  true,    10000,           {},         354'823'168, kGpt2, kGpt},
    {"gpt2-large",      36,  1280,  20, 20,  64,  5120,  50257,   1024,  true,    10000,           {},         774'030'080, kGpt2, kGpt},
    {"gpt2-xl",         48,  1600,  25, 25,  64,  6400,  50257,   1024,  true,    10000,           {},       1'557'611'200, kGpt2, kGpt},
    {"qwen2.5-0.5b",    24,   896,  14,  2,  64,  4864, 151936,  32768,  true,  1000000,           {},         494'032'768, kQwen25, kQwen2Family},
    {"qwen2.5-1.5b",    28,  1536,  12,  2, 128,  8960, 151936, 131072,  true,  1000000,           {},       1'543'714'304, kQwen25, kQwen2Family},
    {"qwen2.5-7b",      28,  3584,  28,  4, 128, 18944, 152064, 131072, false,  1000000,           {},       7'615'616'512, kQwen25, kQwen2Family},
    {"qwen3-0.6b",      28,  1024,  16,  8, 128,  3072, 151936,  40960,  true,  1000000,           {},         596'049'920, kQwen3, kQwen3Family},
    {"qwen3-1.7b",      28,  2048,  16,  8, 128,  6144, 151936,  40960,  true,  1000000,           {},       1'720'574'976, kQwen3, kQwen3Family},
    {"qwen3-4b",        36,  2560,  32,  8, 128,  9728, 151936,  40960,  true,  1000000,           {},       4'022'468'096, kQwen3, kQwen3Family},
    {"qwen3-8b",        36,  4096,  32,  8, 128, 12288, 151936,  40960, false,  1000000,           {},       8'190'735'360, kQwen3, kQwen3Family},
    {"qwen3-14b",       40,  5120,  40,  8, 128, 17408, 151936,  40960, false,  1000000,           {},      14'768'307'200, kQwen3, kQwen3Family},
    {"qwen3-32b",       64,  5120,  64,  8, 128, 25600, 151936,  40960, false,  1000000,           {},      32'762'123'264, kQwen3, kQwen3Family},
    {"mistral-7b-v0.1", 32,  4096,  32,  8, 128, 14336,  32000,  32768, false,    10000,           {},       7'241'732'096, kMistral, kMistralWindow},
    {"mistral-7b-v0.3", 32,  4096,  32,  8, 128, 14336,  32768,  32768, false,  1000000,           {},       7'248'023'552, kMistral},
};
// clang-format on

std::vector<Preset> make_presets() {
  std::vector<Preset> table;
  for (const Row& row : kRows) {
    ModelShape shape;
    shape.architecture = row.family.architecture;
    shape.norm_eps = row.family.norm_eps;
    shape.qkv_bias = row.family.qkv_bias;
    shape.qk_norm = row.family.qk_norm;
    shape.sliding_window = row.family.sliding_window;
    shape.layers = row.layers;
    shape.hidden = row.hidden;
    shape.heads = row.heads;
    shape.kv_heads = row.kv_heads;
    shape.head_dim = row.head_dim;
    shape.ffn = row.ffn;
    shape.vocab = row.vocab;
    shape.max_seq_len = row.max_seq_len;
    shape.tied = row.tied;
    shape.rope_theta = row.rope_theta;
    shape.rope_scaling = row.rope_scaling;
    table.push_back({row.name, shape, row.parameters, row.source});
  }
  return table;
}

}  // namespace

std::span<const Preset> presets() {
  static const std::vector<Preset> table = make_presets();
  return table;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

const Preset& preset(std::string_view name) {
  for (const Preset& preset : presets()) {
    if (preset.name == name) return preset;
  }
  const std::vector<std::string> names = preset_names();
  const std::string near = nearest(name, names);
  std::string known;
  for (const std::string& candidate : names) known += (known.empty() ? "" : ", ") + candidate;
  throw_input("there is no model preset \"{}\"{}; known are {}", name,
              near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near), known);
}

}  // namespace trireme::describe
