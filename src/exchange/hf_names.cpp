#include "exchange/hf_names.h"

#include <fmt/format.h>

namespace trireme::exchange {
namespace {

// GPT2LMHeadModel (transformers, models/gpt2/modeling_gpt2.py).
std::vector<HfTensor> gpt_tensors(const describe::ModelShape& m) {
  std::vector<HfTensor> all;
  const auto affine = [&](const std::string& theirs, const std::string& ours, int64_t size) {
    all.push_back({theirs + ".weight", {ours + ".weight"}, false, {size}});
    all.push_back({theirs + ".bias", {ours + ".bias"}, false, {size}});
  };
  const auto conv = [&](const std::string& theirs, const std::vector<std::string>& ours, int64_t in, int64_t out) {
    HfTensor weight{theirs + ".weight", {}, true, {in, out}}, bias{theirs + ".bias", {}, false, {out}};
    for (const std::string& name : ours) {
      weight.parts.push_back(name + ".weight");
      bias.parts.push_back(name + ".bias");
    }
    all.push_back(std::move(weight));
    all.push_back(std::move(bias));
  };
  all.push_back({"transformer.wte.weight", {"embed.weight"}, false, {m.vocab, m.hidden}});
  all.push_back({"transformer.wpe.weight", {"positions.weight"}, false, {m.max_seq_len, m.hidden}});
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string theirs = fmt::format("transformer.h.{}.", i), ours = fmt::format("blocks.{}.", i);
    affine(theirs + "ln_1", ours + "attention_norm", m.hidden);
    conv(theirs + "attn.c_attn", {ours + "attention.q", ours + "attention.k", ours + "attention.v"}, m.hidden,
         3 * m.hidden);
    conv(theirs + "attn.c_proj", {ours + "attention.output"}, m.hidden, m.hidden);
    affine(theirs + "ln_2", ours + "feed_forward_norm", m.hidden);
    conv(theirs + "mlp.c_fc", {ours + "feed_forward.up"}, m.hidden, m.ffn);
    conv(theirs + "mlp.c_proj", {ours + "feed_forward.down"}, m.ffn, m.hidden);
  }
  affine("transformer.ln_f", "norm", m.hidden);
  return all;
}

// LlamaForCausalLM and those that share its names: Qwen2, Qwen3, Mistral (models/llama/modeling_llama.py, ...).
std::vector<HfTensor> llama_tensors(const describe::ModelShape& m) {
  std::vector<HfTensor> all;
  const auto add = [&](const std::string& theirs, const std::string& ours, std::vector<int64_t> shape) {
    all.push_back({theirs, {ours}, false, std::move(shape)});
  };
  const int64_t query = m.heads * m.head_dim, key_value = m.kv_heads * m.head_dim;
  add("model.embed_tokens.weight", "embed.weight", {m.vocab, m.hidden});
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string theirs = fmt::format("model.layers.{}.", i), ours = fmt::format("blocks.{}.", i);
    const std::string attention = theirs + "self_attn.", mlp = theirs + "mlp.";
    add(theirs + "input_layernorm.weight", ours + "attention_norm.weight", {m.hidden});
    for (const auto& [name, rows] : {std::pair{"q", query}, {"k", key_value}, {"v", key_value}}) {
      add(fmt::format("{}{}_proj.weight", attention, name), fmt::format("{}attention.{}.weight", ours, name),
          {rows, m.hidden});
      if (m.qkv_bias)
        add(fmt::format("{}{}_proj.bias", attention, name), fmt::format("{}attention.{}.bias", ours, name), {rows});
    }
    if (m.qk_norm) {
      add(attention + "q_norm.weight", ours + "attention.q_norm.weight", {m.head_dim});
      add(attention + "k_norm.weight", ours + "attention.k_norm.weight", {m.head_dim});
    }
    add(attention + "o_proj.weight", ours + "attention.output.weight", {m.hidden, query});
    add(theirs + "post_attention_layernorm.weight", ours + "feed_forward_norm.weight", {m.hidden});
    add(mlp + "gate_proj.weight", ours + "feed_forward.gate.weight", {m.ffn, m.hidden});
    add(mlp + "up_proj.weight", ours + "feed_forward.up.weight", {m.ffn, m.hidden});
    add(mlp + "down_proj.weight", ours + "feed_forward.down.weight", {m.hidden, m.ffn});
  }
  add("model.norm.weight", "norm.weight", {m.hidden});
  return all;
}

}  // namespace

std::vector<HfTensor> hf_tensors(const describe::ModelShape& shape) {
  std::vector<HfTensor> all = shape.is_gpt() ? gpt_tensors(shape) : llama_tensors(shape);
  if (!shape.tied) all.push_back({"lm_head.weight", {"head.weight"}, false, {shape.vocab, shape.hidden}});
  return all;
}

}  // namespace trireme::exchange
