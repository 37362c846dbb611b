// Models that only the planner knows. Numbers are those of the papers and published configurations.
#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "describe/work_shape.h"

namespace trireme::describe {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kAliases = {{
    {"llama3-405b", "llama3.1-405b"},
    {"llama-3.1-405b", "llama3.1-405b"},
    {"llama-3-70b", "llama3-70b"},
    {"llama-3-8b", "llama3-8b"},
    {"gpt-3", "gpt3-175b"},
    {"gpt2-small", "gpt2"},
}};

ModelShape decoder(std::string_view architecture, int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads,
                   int64_t head_dim, int64_t ffn, int64_t vocab, int64_t max_seq_len, bool tied) {
  ModelShape shape;
  shape.architecture = architecture;
  shape.layers = layers;
  shape.hidden = hidden;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.ffn = ffn;
  shape.vocab = vocab;
  shape.max_seq_len = max_seq_len;
  shape.tied = tied;
  return shape;
}

ModelShape gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t vocab) {
  return decoder("gpt", layers, hidden, heads, heads, hidden / heads, 4 * hidden, vocab, 2048, true);
}

std::vector<WorkPreset> make_table() {
  constexpr std::string_view kMegatron = "Korthikanti et al., arXiv:2205.05198, table 3";
  constexpr std::string_view kMixtral = "Jiang et al., arXiv:2401.04088; mistralai/Mixtral config.json";
  constexpr std::string_view kQwen3 = "Qwen team, arXiv:2505.09388, table 2; Qwen/Qwen3 config.json";
  const LatentAttention deepseek{
      .query_rank = 1536, .kv_rank = 512, .content_dim = 128, .rotary_dim = 64, .value_dim = 128};
  std::vector<WorkPreset> table;
  const auto add = [&](WorkShape shape, double total, double active, std::string_view source) {
    table.push_back({std::move(shape), total, active, source});
  };
  // clang-format off
  add({"megatron-22b", gpt(48, 6144, 64, 51200), {}, {}, 0}, 22e9, 0, kMegatron);
  add({"gpt3-175b", gpt(96, 12288, 96, 50257), {}, {}, 0}, 175e9, 0, "Brown et al., arXiv:2005.14165, table 2.1");
  add({"mt-nlg-530b", gpt(105, 20480, 128, 51200), {}, {}, 0}, 530e9, 0, "Smith et al., arXiv:2201.11990");
  add({"megatron-1t", gpt(128, 25600, 160, 51200), {}, {}, 0}, 1008e9, 0, kMegatron);
  add({"palm-540b", decoder("llama", 118, 18432, 48, 1, 256, 73728, 256000, 2048, true), {}, {}, 0}, 540.35e9, 0,
      "Chowdhery et al., arXiv:2204.02311, table 1");
  add({"mixtral-8x7b", decoder("llama", 32, 4096, 32, 8, 128, 14336, 32000, 32768, false),
       {.experts = 8, .active = 2, .ffn = 14336}, {}, 0}, 46.7e9, 12.9e9, kMixtral);
  add({"mixtral-8x22b", decoder("llama", 56, 6144, 48, 8, 128, 16384, 32768, 65536, false),
       {.experts = 8, .active = 2, .ffn = 16384}, {}, 0}, 140.6e9, 39.1e9, kMixtral);
  ModelShape small = decoder("llama", 48, 2048, 32, 4, 128, 6144, 151936, 40960, false);
  small.qk_norm = true;
  add({"qwen3-30b-a3b", small, {.experts = 128, .active = 8, .ffn = 768}, {}, 0}, 30.5e9, 3.3e9, kQwen3);
  ModelShape large = decoder("llama", 94, 4096, 64, 4, 128, 12288, 151936, 40960, false);
  large.qk_norm = true;
  add({"qwen3-235b-a22b", large, {.experts = 128, .active = 8, .ffn = 1536}, {}, 0}, 235e9, 22e9, kQwen3);
  add({"deepseek-v2", decoder("llama", 60, 5120, 128, 128, 192, 12288, 102400, 4096, false),
       {.experts = 160, .active = 6, .ffn = 1536, .shared_ffn = 3072, .dense_layers = 1}, deepseek, 0},
      236e9, 21e9, "DeepSeek-AI, arXiv:2405.04434");
  add({"deepseek-v3", decoder("llama", 61, 7168, 128, 128, 192, 18432, 129280, 4096, false),
       {.experts = 256, .active = 8, .ffn = 2048, .shared_ffn = 2048, .dense_layers = 3}, deepseek, 1},
      671e9, 37e9, "DeepSeek-AI, arXiv:2412.19437, section 4.2");
  add({"kimi-k2", decoder("llama", 61, 7168, 64, 64, 192, 18432, 163840, 4096, false),
       {.experts = 384, .active = 8, .ffn = 2048, .shared_ffn = 2048, .dense_layers = 1}, deepseek, 0},
      1.04e12, 32.6e9, "Kimi team, arXiv:2507.20534; moonshotai/Kimi-K2 config.json");
  // clang-format on
  return table;
}

}  // namespace

std::span<const WorkPreset> work_presets() {
  static const std::vector<WorkPreset> table = make_table();
  return table;
}

std::vector<std::string> work_preset_names() {
  std::vector<std::string> names = preset_names();
  for (const WorkPreset& row : work_presets()) names.push_back(row.shape.name);
  for (const auto& [alias, name] : kAliases) names.emplace_back(alias);
  return names;
}

WorkShape work_preset(std::string_view name) {
  std::string wanted = lower(name);
  for (const auto& [alias, target] : kAliases) {
    if (wanted == alias) wanted = target;
  }
  for (const WorkPreset& row : work_presets()) {
    if (row.shape.name == wanted) return row.shape;
  }
  for (const Preset& row : presets()) {
    if (row.name == wanted) return {std::string(row.name), row.shape, {}, {}, 0};
  }
  const std::vector<std::string> names = work_preset_names();
  const std::string near = nearest(wanted, names);
  std::string known;
  for (const std::string& candidate : names) known += (known.empty() ? "" : ", ") + candidate;
  throw_input("there is no model \"{}\"{}; known are {}", name,
              near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near), known);
}

}  // namespace trireme::describe
