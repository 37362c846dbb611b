#include "models/llama.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/dispatch.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace trireme::models {
namespace {

constexpr double kDeviation = 0.02;

nn::LogicalTensor matrix(std::string name, int64_t rows, int64_t cols, double deviation) {
  return {std::move(name), {rows, cols}, {nn::Init::Kind::truncated_normal, deviation}, true};
}
nn::LogicalTensor norm_weight(std::string name, int64_t size) {
  return {std::move(name), {size}, {nn::Init::Kind::ones, 0}, false};
}

}  // namespace

Llama::Llama(describe::ModelShape s, at::ScalarType dtype) : Model(std::move(s), dtype) {
  const describe::ModelShape& m = shape_;
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(m.layers));
  // A tied matrix is read twice in a forward pass, and its unit is complete only when both have delivered.
  embedding_ = add_parameter({matrix("embed.weight", m.vocab, m.hidden, kDeviation)}, m.tied ? 2 : 1);
  if (!m.tied) units_.push_back({"embed", {embedding_}});
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string at = "blocks." + std::to_string(i) + ".";
    Block b{};
    b.attention_norm = add_parameter({norm_weight(at + "attention_norm.weight", m.hidden)});
    b.qkv = add_parameter({matrix(at + "attention.q.weight", m.heads * m.head_dim, m.hidden, kDeviation),
                           matrix(at + "attention.k.weight", m.kv_heads * m.head_dim, m.hidden, kDeviation),
                           matrix(at + "attention.v.weight", m.kv_heads * m.head_dim, m.hidden, kDeviation)});
    b.output = add_parameter({matrix(at + "attention.output.weight", m.hidden, m.heads * m.head_dim, residual)});
    b.feed_forward_norm = add_parameter({norm_weight(at + "feed_forward_norm.weight", m.hidden)});
    b.gate_up = add_parameter({matrix(at + "feed_forward.gate.weight", m.ffn, m.hidden, kDeviation),
                               matrix(at + "feed_forward.up.weight", m.ffn, m.hidden, kDeviation)});
    b.down = add_parameter({matrix(at + "feed_forward.down.weight", m.hidden, m.ffn, residual)});
    blocks_.push_back(b);
    units_.push_back(
        {"blocks." + std::to_string(i), {b.attention_norm, b.qkv, b.output, b.feed_forward_norm, b.gate_up, b.down}});
  }
  norm_ = add_parameter({norm_weight("norm.weight", m.hidden)});
  head_ = m.tied
              ? embedding_
              : add_parameter({matrix("head.weight", m.vocab, m.hidden, 1 / std::sqrt(static_cast<double>(m.hidden)))});
  units_.push_back({m.tied ? "embed+norm" : "norm+head", {norm_, head_}});
}

void Llama::prepare(at::Device device) {
  std::optional<ops::RotaryScaling> scaling;
  if (shape_.rope_scaling.active())
    scaling = ops::RotaryScaling{shape_.rope_scaling.factor, shape_.rope_scaling.low_freq_factor,
                                 shape_.rope_scaling.high_freq_factor, shape_.rope_scaling.original_max_seq_len};
  rotary_ = ops::make_rotary_table(shape_.max_seq_len, shape_.head_dim, shape_.rope_theta, scaling,
                                   ops::compute_type(dtype_), device);
  anchor_ = at::zeros({}, at::TensorOptions(dtype_).device(device)).requires_grad_();
}

at::Tensor Llama::embed(const at::Tensor& tokens) { return ops::embedding(tokens, embedding_->weight(), anchor_); }

at::Tensor Llama::block(int64_t index, const at::Tensor& x, const at::Tensor& positions, ops::KeyValueCache* cache) {
  const Block& b = blocks_.at(static_cast<size_t>(index));
  const ops::AttentionShape heads{shape_.heads, shape_.kv_heads, shape_.head_dim};
  const at::Tensor qkv = ops::linear(ops::rms_norm(x, b.attention_norm->weight(), shape_.norm_eps), b.qkv->weight());
  const at::Tensor mixed = cache != nullptr ? ops::cached_attention(qkv, heads, rotary_, positions, *cache)
                                            : ops::causal_attention(qkv, heads, rotary_, positions);
  const auto [h, normed] =
      ops::add_rms_norm(x, ops::linear(mixed, b.output->weight()), b.feed_forward_norm->weight(), shape_.norm_eps);
  return h + ops::linear(ops::swiglu(ops::linear(normed, b.gate_up->weight())), b.down->weight());
}

at::Tensor Llama::final_norm(const at::Tensor& x) { return ops::rms_norm(x, norm_->weight(), shape_.norm_eps); }

}  // namespace trireme::models
