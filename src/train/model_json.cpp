#include "train/model_json.h"

#include <nlohmann/json.hpp>

namespace trireme::train {

nlohmann::json to_json(const describe::ModelShape& m) {
  const describe::RopeScaling& rope = m.rope_scaling;
  return {{"architecture", m.architecture},
          {"layers", m.layers},
          {"hidden", m.hidden},
          {"heads", m.heads},
          {"kv_heads", m.kv_heads},
          {"head_dim", m.head_dim},
          {"ffn", m.ffn},
          {"vocab", m.vocab},
          {"max_seq_len", m.max_seq_len},
          {"tied", m.tied},
          {"norm_eps", m.norm_eps},
          {"dropout", m.dropout},
          {"sliding_window", m.sliding_window},
          {"logit_softcap", m.logit_softcap},
          {"qkv_bias", m.qkv_bias},
          {"qk_norm", m.qk_norm},
          {"rope_theta", m.rope_theta},
          {"options", m.options},
          {"rope_scaling",
           {{"type", rope.type},
            {"factor", rope.factor},
            {"low_freq_factor", rope.low_freq_factor},
            {"high_freq_factor", rope.high_freq_factor},
            {"beta_fast", rope.beta_fast},
            {"beta_slow", rope.beta_slow},
            {"original_max_seq_len", rope.original_max_seq_len}}}};
}

describe::ModelShape shape_from_json(const nlohmann::json& json) {
  describe::ModelShape m;
  json.at("architecture").get_to(m.architecture);
  json.at("layers").get_to(m.layers);
  json.at("hidden").get_to(m.hidden);
  json.at("heads").get_to(m.heads);
  json.at("kv_heads").get_to(m.kv_heads);
  json.at("head_dim").get_to(m.head_dim);
  json.at("ffn").get_to(m.ffn);
  json.at("vocab").get_to(m.vocab);
  json.at("max_seq_len").get_to(m.max_seq_len);
  json.at("tied").get_to(m.tied);
  json.at("norm_eps").get_to(m.norm_eps);
  m.dropout = json.value("dropout", m.dropout);
  m.sliding_window = json.value("sliding_window", m.sliding_window);
  m.logit_softcap = json.value("logit_softcap", m.logit_softcap);
  m.qkv_bias = json.value("qkv_bias", m.qkv_bias);
  m.qk_norm = json.value("qk_norm", m.qk_norm);
  json.at("rope_theta").get_to(m.rope_theta);
  m.options = json.value("options", m.options);
  const nlohmann::json& scaling = json.at("rope_scaling");
  describe::RopeScaling& rope = m.rope_scaling;
  rope.type = scaling.value("type", rope.type);
  scaling.at("factor").get_to(rope.factor);
  scaling.at("low_freq_factor").get_to(rope.low_freq_factor);
  scaling.at("high_freq_factor").get_to(rope.high_freq_factor);
  rope.beta_fast = scaling.value("beta_fast", rope.beta_fast);
  rope.beta_slow = scaling.value("beta_slow", rope.beta_slow);
  scaling.at("original_max_seq_len").get_to(rope.original_max_seq_len);
  return m;
}

}  // namespace trireme::train
