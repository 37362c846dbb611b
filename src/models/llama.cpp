#include "models/llama.h"

#include <ATen/ATen.h>

#include <fmt/format.h>

#include "models/initial.h"
#include "ops/activation.h"
#include "ops/add.h"
#include "ops/dispatch.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace trireme::models {

Llama::Llama(describe::ModelShape s, at::ScalarType dtype) : Model(std::move(s), dtype) {
  const describe::ModelShape& m = shape_;
  const int64_t query = m.heads * m.head_dim, key_value = m.kv_heads * m.head_dim;
  const double residual = residual_deviation(m.layers);
  // A tied matrix is read twice in a forward pass, and its unit is complete only when both have delivered.
  embedding_ = add_parameter({matrix("embed.weight", m.vocab, m.hidden)}, m.tied ? 2 : 1);
  if (!m.tied) units_.push_back({"embed", {embedding_}});
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string at = fmt::format("blocks.{}.", i), attention = at + "attention.", ffn = at + "feed_forward.";
    nn::Unit unit{fmt::format("blocks.{}", i), {}};
    const auto add = [&](std::vector<nn::LogicalTensor> parts) {
      unit.parameters.push_back(add_parameter(std::move(parts)));
      return unit.parameters.back();
    };
    Block b{};
    b.attention_norm = add({norm_weight(at + "attention_norm.weight", m.hidden)});
    b.qkv = add({matrix(attention + "q.weight", query, m.hidden), matrix(attention + "k.weight", key_value, m.hidden),
                 matrix(attention + "v.weight", key_value, m.hidden)});
    if (m.qkv_bias)
      b.qkv_bias = add({bias(attention + "q.bias", query), bias(attention + "k.bias", key_value),
                        bias(attention + "v.bias", key_value)});
    if (m.qk_norm) {
      b.q_norm = add({norm_weight(attention + "q_norm.weight", m.head_dim)});
      b.k_norm = add({norm_weight(attention + "k_norm.weight", m.head_dim)});
    }
    b.output = add({matrix(attention + "output.weight", m.hidden, query, residual)});
    b.feed_forward_norm = add({norm_weight(at + "feed_forward_norm.weight", m.hidden)});
    b.gate_up = add({matrix(ffn + "gate.weight", m.ffn, m.hidden), matrix(ffn + "up.weight", m.ffn, m.hidden)});
    b.down = add({matrix(ffn + "down.weight", m.hidden, m.ffn, residual)});
    blocks_.push_back(b);
    units_.push_back(std::move(unit));
  }
  norm_ = add_parameter({norm_weight("norm.weight", m.hidden)});
  head_ = m.tied ? embedding_ : add_parameter({matrix("head.weight", m.vocab, m.hidden, head_deviation(m.hidden))});
  units_.push_back({m.tied ? "embed+norm" : "norm+head", {norm_, head_}});
}

void Llama::prepare(at::Device device) {
  rotary_ = ops::make_rotary_table(shape_.max_seq_len, shape_.head_dim, shape_.rope_theta, shape_.rope_scaling,
                                   ops::compute_type(dtype_), device);
  anchor_ = at::zeros({}, at::TensorOptions(dtype_).device(device)).requires_grad_();
}

at::Tensor Llama::embed(const at::Tensor& tokens, const Pass& pass) {
  return ops::dropout(ops::embedding(tokens, embedding_->weight(), anchor_), pass.dropout, "embed");
}

at::Tensor Llama::attention(const Block& b, const at::Tensor& qkv, const std::string& place, const Pass& pass,
                            ops::KeyValueCache* cache) const {
  const ops::AttentionShape heads{shape_.heads, shape_.kv_heads, shape_.head_dim};
  const at::Tensor normed = shape_.qk_norm ? ops::qk_norm(qkv, heads.heads, heads.kv_heads, b.q_norm->weight(),
                                                          b.k_norm->weight(), shape_.norm_eps)
                                           : qkv;
  if (cache != nullptr)
    return ops::cached_attention(normed, heads, rotary_, pass.positions, *cache, shape_.sliding_window);
  return ops::causal_attention(normed, heads, rotary_, pass.positions,
                               {shape_.sliding_window, pass.segments, window_mask_}, pass.dropout,
                               place + "attention.weights");
}

at::Tensor Llama::block(int64_t index, const at::Tensor& x, const Pass& pass, ops::KeyValueCache* cache) {
  const Block& b = blocks_.at(static_cast<size_t>(index));
  const std::string at = fmt::format("blocks.{}.", index);
  const bool selective = pass.recompute == config::Recompute::selective;
  const double eps = shape_.norm_eps;
  const auto norm_again = [&](const at::Tensor& from, const nn::Parameter& norm) -> ops::Rebuild {
    if (!selective) return {};
    return [from = from.detach(), weight = norm.value(), eps] { return ops::rms_norm(from, {weight}, eps); };
  };

  const at::Tensor first = ops::rms_norm(x, b.attention_norm->weight(), eps);
  const ops::Rebuild first_again = norm_again(x, *b.attention_norm);
  const at::Tensor qkv = shape_.qkv_bias ? ops::linear(first, b.qkv->weight(), b.qkv_bias->weight(), first_again)
                                         : ops::linear(first, b.qkv->weight(), first_again);
  const at::Tensor mixed = attention(b, qkv, at, pass, cache);
  const auto [h, second] =
      ops::add_rms_norm(x, ops::dropout(ops::linear(mixed, b.output->weight()), pass.dropout, at + "attention.output"),
                        b.feed_forward_norm->weight(), eps);
  const at::Tensor gate_up = ops::linear(second, b.gate_up->weight(), norm_again(h, *b.feed_forward_norm));
  const ops::Rebuild swiglu_again = [gate_up = gate_up.detach()] { return ops::swiglu(gate_up); };
  const at::Tensor down =
      ops::linear(ops::swiglu(gate_up), b.down->weight(), selective ? swiglu_again : ops::Rebuild());
  return ops::add(h, ops::dropout(down, pass.dropout, at + "feed_forward.output"));
}

at::Tensor Llama::final_norm(const at::Tensor& x) { return ops::rms_norm(x, norm_->weight(), shape_.norm_eps); }

}  // namespace trireme::models
