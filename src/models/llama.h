// Llama: RMSNorm before attention and feed-forward, rotary positions, grouped queries, SwiGLU, no biases
// (Touvron et al., arXiv:2302.13971 and 2307.09288; Grattafiori et al., arXiv:2407.21783); and what differs from it by
// an option: Qwen 2 (biases of q, k, v), Qwen 3 (norms of query and key heads), Mistral 7B (sliding window).
//
// Logical tensors: embed.weight; blocks.I.{attention_norm, attention.{q,k,v,output}, feed_forward_norm,
// feed_forward.{gate,up,down}}.weight; norm.weight; head.weight unless tied; with qkv_bias
// blocks.I.attention.{q,k,v}.bias; with qk_norm blocks.I.attention.{q_norm,k_norm}.weight.
// Initial values: truncated normal, 0.02 for all matrices (Llama's own and TorchTitan's), 0.02 / sqrt(2 layers) for the
// two that write to the residual stream (GPT-2 paper, section 2.3), hidden^-1/2 for a head of its own (TorchTitan);
// norms 1, biases 0.
#pragma once

#include "models/model.h"
#include "ops/rotary.h"

namespace trireme::models {

class Llama final : public Model {
 public:
  Llama(describe::ModelShape shape, at::ScalarType dtype);

  void prepare(at::Device device) override;
  at::Tensor embed(const at::Tensor& tokens, const Pass& pass) override;
  at::Tensor block(int64_t index, const at::Tensor& x, const Pass& pass, ops::KeyValueCache* cache) override;
  at::Tensor final_norm(const at::Tensor& x) override;
  nn::Parameter& head() override { return *head_; }

 private:
  struct Block {
    nn::Parameter *attention_norm, *qkv, *qkv_bias, *q_norm, *k_norm, *output, *feed_forward_norm, *gate_up, *down;
  };

  at::Tensor attention(const Block& block, const at::Tensor& qkv, const std::string& place, const Pass& pass,
                       ops::KeyValueCache* cache) const;

  nn::Parameter *embedding_, *norm_, *head_;
  std::vector<Block> blocks_;
  ops::RotaryTable rotary_;
  std::shared_ptr<at::Tensor> window_mask_ = std::make_shared<at::Tensor>();  // of this model's one window
  at::Tensor anchor_;
};

}  // namespace trireme::models
