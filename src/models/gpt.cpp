#include "models/gpt.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "models/initial.h"
#include "ops/activation.h"
#include "ops/add.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace trireme::models {

Gpt::Gpt(describe::ModelShape s, at::ScalarType dtype) : Model(std::move(s), dtype) {
  const describe::ModelShape& m = shape_;
  const double residual = residual_deviation(m.layers);
  const auto norm = [&](const std::string& name) {
    return Affine{add_parameter({norm_weight(name + ".weight", m.hidden)}),
                  add_parameter({bias(name + ".bias", m.hidden)})};
  };
  const auto linear = [&](const std::string& name, int64_t rows, int64_t cols, double deviation) {
    return Affine{add_parameter({matrix(name + ".weight", rows, cols, deviation)}),
                  add_parameter({bias(name + ".bias", rows)})};
  };
  // A tied matrix is read twice in a forward pass, and its unit is complete only when both have delivered.
  embedding_ = add_parameter({matrix("embed.weight", m.vocab, m.hidden)}, m.tied ? 2 : 1);
  positions_ = add_parameter({matrix("positions.weight", m.max_seq_len, m.hidden)});
  if (m.tied)
    units_.push_back({"positions", {positions_}});
  else
    units_.push_back({"embed", {embedding_, positions_}});
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string at = fmt::format("blocks.{}.", i), attention = at + "attention.", ffn = at + "feed_forward.";
    Block b{};
    b.attention_norm = norm(at + "attention_norm");
    const auto part = [&](const char* name) { return matrix(attention + name + ".weight", m.hidden, m.hidden); };
    const auto part_bias = [&](const char* name) { return bias(attention + name + ".bias", m.hidden); };
    b.qkv = {add_parameter({part("q"), part("k"), part("v")}),
             add_parameter({part_bias("q"), part_bias("k"), part_bias("v")})};
    b.output = linear(attention + "output", m.hidden, m.hidden, residual);
    b.feed_forward_norm = norm(at + "feed_forward_norm");
    b.up = linear(ffn + "up", m.ffn, m.hidden, kDeviation);
    b.down = linear(ffn + "down", m.hidden, m.ffn, residual);
    blocks_.push_back(b);
    nn::Unit unit{fmt::format("blocks.{}", i), {}};
    for (const Affine& affine : {b.attention_norm, b.qkv, b.output, b.feed_forward_norm, b.up, b.down})
      unit.parameters.insert(unit.parameters.end(), {affine.weight, affine.bias});
    units_.push_back(std::move(unit));
  }
  norm_ = norm("norm");
  head_ = m.tied ? embedding_ : add_parameter({matrix("head.weight", m.vocab, m.hidden, head_deviation(m.hidden))});
  units_.push_back({m.tied ? "embed+norm" : "norm+head", {norm_.weight, norm_.bias, head_}});
}

void Gpt::prepare(at::Device device) {
  anchor_ = at::zeros({}, at::TensorOptions(dtype_).device(device)).requires_grad_();
}

at::Tensor Gpt::embed(const at::Tensor& tokens, const Pass& pass) {
  const at::Tensor positions = pass.positions.view(tokens.sizes());
  const at::Tensor x = ops::add(ops::embedding(tokens, embedding_->weight(), anchor_),
                                ops::embedding(positions, positions_->weight(), anchor_));
  return ops::dropout(x, pass.dropout, "embed");
}

at::Tensor Gpt::block(int64_t index, const at::Tensor& x, const Pass& pass, ops::KeyValueCache* cache) {
  const Block& b = blocks_.at(static_cast<size_t>(index));
  const std::string at = fmt::format("blocks.{}.", index);
  const ops::AttentionShape heads{shape_.heads, shape_.kv_heads, shape_.head_dim};
  const bool selective = pass.recompute == config::Recompute::selective;
  const double eps = shape_.norm_eps;
  const auto norm_again = [eps](const at::Tensor& from, const Affine& norm) -> ops::Rebuild {
    return [from = from.detach(), weight = norm.weight->value(), bias = norm.bias->value(), eps] {
      return ops::layer_norm(from, {weight}, {bias}, eps);
    };
  };
  const auto linear = [](const at::Tensor& input, const Affine& affine, const ops::Rebuild& again = {}) {
    return ops::linear(input, affine.weight->weight(), affine.bias->weight(), again);
  };

  const at::Tensor first = ops::layer_norm(x, b.attention_norm.weight->weight(), b.attention_norm.bias->weight(), eps);
  const at::Tensor qkv = linear(first, b.qkv, selective ? norm_again(x, b.attention_norm) : ops::Rebuild());
  const at::Tensor mixed = cache != nullptr
                               ? ops::cached_attention(qkv, heads, {}, pass.positions, *cache)
                               : ops::causal_attention(qkv, heads, {}, pass.positions, {0, pass.segments, nullptr},
                                                       pass.dropout, at + "attention.weights");
  const auto [h, second] =
      ops::add_layer_norm(x, ops::dropout(linear(mixed, b.output), pass.dropout, at + "attention.output"),
                          b.feed_forward_norm.weight->weight(), b.feed_forward_norm.bias->weight(), eps);
  const at::Tensor up = linear(second, b.up, selective ? norm_again(h, b.feed_forward_norm) : ops::Rebuild());
  const ops::Rebuild gelu_again = [up = up.detach()] { return ops::gelu(up); };
  const at::Tensor down = linear(ops::gelu(up), b.down, selective ? gelu_again : ops::Rebuild());
  return ops::add(h, ops::dropout(down, pass.dropout, at + "feed_forward.output"));
}

at::Tensor Gpt::final_norm(const at::Tensor& x) {
  return ops::layer_norm(x, norm_.weight->weight(), norm_.bias->weight(), shape_.norm_eps);
}

}  // namespace trireme::models
