// GPT-2 (Radford et al., 2019; openai/gpt-2, src/model.py): learned positions, layer normalisation before attention and
// feed-forward, biases everywhere but at the head, GELU by the tanh formula.
//
// Logical tensors: embed.weight; positions.weight; blocks.I.{attention_norm, attention.{q,k,v,output},
// feed_forward_norm, feed_forward.{up,down}}.{weight,bias}; norm.{weight,bias}; head.weight unless tied. Initial
// values: truncated normal, 0.02 for tables and matrices, 0.02 / sqrt(2 layers) for the two that write to the residual
// stream (section 2.3); biases 0, norms 1.
#pragma once

#include "models/model.h"

namespace trireme::models {

class Gpt final : public Model {
 public:
  Gpt(describe::ModelShape shape, at::ScalarType dtype);

  void prepare(at::Device device) override;
  at::Tensor embed(const at::Tensor& tokens, const Pass& pass) override;
  at::Tensor block(int64_t index, const at::Tensor& x, const Pass& pass, ops::KeyValueCache* cache) override;
  at::Tensor final_norm(const at::Tensor& x) override;
  nn::Parameter& head() override { return *head_; }

 private:
  struct Affine {
    nn::Parameter *weight, *bias;
  };
  struct Block {
    Affine attention_norm, qkv, output, feed_forward_norm, up, down;
  };

  nn::Parameter *embedding_, *positions_, *head_;
  Affine norm_;
  std::vector<Block> blocks_;
  at::Tensor anchor_;
};

}  // namespace trireme::models
