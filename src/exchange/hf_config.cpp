#include "exchange/hf_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace trireme::exchange {
namespace {

using Json = nlohmann::ordered_json;

Json gpt_config(const describe::ModelShape& m) {
  return {{"vocab_size", m.vocab},
          {"n_positions", m.max_seq_len},
          {"n_embd", m.hidden},
          {"n_layer", m.layers},
          {"n_head", m.heads},
          {"n_inner", m.ffn},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", m.norm_eps},
          {"embd_pdrop", m.dropout},
          {"attn_pdrop", m.dropout},
          {"resid_pdrop", m.dropout}};
}

// Null when frequencies are not stretched, or in a way that a larger base tells as well.
Json rope_scaling(const describe::RopeScaling& rope) {
  if (!rope.active() || rope.type == "ntk") return nullptr;
  Json json = {{"rope_type", rope.type}, {"factor", rope.factor}};
  if (rope.type == "llama3") {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == "yarn") {
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
  }
  if (rope.type != "linear") json["original_max_position_embeddings"] = rope.original_max_seq_len;
  return json;
}

// transformers' two names of an architecture.
struct Family {
  const char *model_type, *architecture;
};

Family family_of(const describe::ModelShape& m) {
  if (m.is_gpt()) return {"gpt2", "GPT2LMHeadModel"};
  if (m.qk_norm) return {"qwen3", "Qwen3ForCausalLM"};
  if (m.qkv_bias) return {"qwen2", "Qwen2ForCausalLM"};
  if (m.sliding_window > 0) return {"mistral", "MistralForCausalLM"};
  return {"llama", "LlamaForCausalLM"};
}

Json llama_config(const describe::ModelShape& m) {
  Json json = {{"vocab_size", m.vocab},
               {"hidden_size", m.hidden},
               {"intermediate_size", m.ffn},
               {"num_hidden_layers", m.layers},
               {"num_attention_heads", m.heads},
               {"num_key_value_heads", m.kv_heads},
               {"head_dim", m.head_dim},
               {"hidden_act", "silu"},
               {"max_position_embeddings", m.max_seq_len},
               {"rms_norm_eps", m.norm_eps},
               {"rope_theta", describe::rotary_theta(m.head_dim, m.rope_theta, m.rope_scaling)},
               {"rope_scaling", rope_scaling(m.rope_scaling)},
               {"attention_dropout", m.dropout}};
  if (m.qk_norm || !m.qkv_bias) json["attention_bias"] = false;
  if (m.sliding_window > 0) json["sliding_window"] = m.sliding_window;
  if (m.qk_norm || m.qkv_bias) {
    json["use_sliding_window"] = m.sliding_window > 0;
    json["max_window_layers"] = m.sliding_window > 0 ? 0 : m.layers;  // layers from this one on have the window
  }
  return json;
}

}  // namespace

std::string hf_architecture(const describe::ModelShape& shape) {
  if (!shape.is_gpt() && shape.architecture != "llama")
    throw_input("model.architecture = \"{}\" is of this program alone; transformers has llama and gpt",
                shape.architecture);
  std::vector<std::string> faults;
  if (shape.logit_softcap > 0)
    faults.push_back(fmt::format(
        "the model has model.logit_softcap = {}, which transformers has in Gemma 2 alone, with other blocks",
        shape.logit_softcap));
  if (shape.qkv_bias && shape.qk_norm)
    faults.emplace_back(
        "the model has model.qkv_bias and model.qk_norm, and no architecture of transformers has both without further "
        "biases: Qwen2ForCausalLM has the first, Qwen3ForCausalLM the second");
  if (!faults.empty()) throw InputError(faults);
  return family_of(shape).architecture;
}

std::string hf_config(const describe::ModelShape& shape, std::string_view dtype, int64_t end_of_text) {
  Json json = {{"architectures", {hf_architecture(shape)}}, {"model_type", family_of(shape).model_type}};
  json.update(shape.is_gpt() ? gpt_config(shape) : llama_config(shape));
  json["tie_word_embeddings"] = shape.tied;
  json["initializer_range"] = 0.02;
  json["bos_token_id"] = end_of_text;
  json["eos_token_id"] = end_of_text;
  json["torch_dtype"] = dtype;
  return json.dump(2) + "\n";
}

std::string hf_generation_config(int64_t end_of_text) {
  const Json json = {
      {"bos_token_id", end_of_text}, {"eos_token_id", end_of_text}, {"pad_token_id", end_of_text}, {"do_sample", true}};
  return json.dump(2) + "\n";
}

}  // namespace trireme::exchange
