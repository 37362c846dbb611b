// A model that Trireme does not have, in one file, with the whole command line around it: own_model train run.toml
//
// Blocks compute attention and feed-forward side by side from one norm, as GPT-J and PaLM do (Chowdhery et al.,
// arXiv:2204.02311, section 2), and the feed-forward layer squares a ReLU (So et al., Primer, arXiv:2109.08668):
//   x + W_out attention(W_qkv n) + W_down relu(W_up n)^2   with n = norm(x)
#include <ATen/ATen.h>
#include <trireme/cli/main.h>
#include <trireme/models/register.h>
#include <trireme/ops/dispatch.h>
#include <trireme/ops/embedding.h>
#include <trireme/ops/linear.h>
#include <trireme/ops/norm.h>

#include <cmath>
#include <string>
#include <vector>

namespace {

using trireme::describe::ModelShape;
using trireme::models::Pass;
namespace nn = trireme::nn;
namespace ops = trireme::ops;

nn::LogicalTensor matrix(std::string name, int64_t rows, int64_t cols, double deviation) {
  return {std::move(name), {rows, cols}, {nn::Init::Kind::truncated_normal, deviation}, /*decay=*/true};
}
nn::LogicalTensor norm(std::string name, int64_t size) {
  return {std::move(name), {size}, {nn::Init::Kind::ones, 0}, /*decay=*/false};
}

class ParallelDecoder final : public trireme::models::Model {
 public:
  // On the meta device: names, shapes and initial values, no memory. A name fixes the initial values of its tensor and
  // where a checkpoint finds it.
  ParallelDecoder(ModelShape shape, at::ScalarType dtype) : Model(std::move(shape), dtype) {
    const ModelShape& m = shape_;
    const double deviation = trireme::describe::model_option(m, "deviation");
    const double residual = deviation / std::sqrt(2.0 * static_cast<double>(m.layers));
    // A unit is what is summed over workers at once; backward completes units in about the reverse of this order.
    embedding_ = add_parameter({matrix("embed.weight", m.vocab, m.hidden, deviation)});
    units_.push_back({"embed", {embedding_}});
    for (int64_t i = 0; i < m.layers; ++i) {
      const std::string at = "blocks." + std::to_string(i) + ".";
      Block b{};
      b.norm = add_parameter({norm(at + "norm.weight", m.hidden)});
      // Three tensors by name, one in memory, so that one product serves them.
      b.qkv = add_parameter({matrix(at + "q.weight", m.heads * m.head_dim, m.hidden, deviation),
                             matrix(at + "k.weight", m.kv_heads * m.head_dim, m.hidden, deviation),
                             matrix(at + "v.weight", m.kv_heads * m.head_dim, m.hidden, deviation)});
      b.output = add_parameter({matrix(at + "output.weight", m.hidden, m.heads * m.head_dim, residual)});
      b.up = add_parameter({matrix(at + "up.weight", m.ffn, m.hidden, deviation)});
      b.down = add_parameter({matrix(at + "down.weight", m.hidden, m.ffn, residual)});
      blocks_.push_back(b);
      units_.push_back({"blocks." + std::to_string(i), {b.norm, b.qkv, b.output, b.up, b.down}});
    }
    norm_ = add_parameter({norm("norm.weight", m.hidden)});
    head_ = add_parameter({matrix("head.weight", m.vocab, m.hidden, 1 / std::sqrt(static_cast<double>(m.hidden)))});
    units_.push_back({"norm+head", {norm_, head_}});
  }

  void prepare(at::Device device) override {
    rotary_ = ops::make_rotary_table(shape_.max_seq_len, shape_.head_dim, shape_.rope_theta, shape_.rope_scaling,
                                     ops::compute_type(dtype_), device);
    // Weights are no inputs of autograd, and tokens have no gradient: something has to ask for one.
    anchor_ = at::zeros({}, at::TensorOptions(dtype_).device(device)).requires_grad_();
  }

  at::Tensor embed(const at::Tensor& tokens, const Pass& pass) override {
    return ops::dropout(ops::embedding(tokens, embedding_->weight(), anchor_), pass.dropout, "embed");
  }

  // Trireme's operations deliver the gradients of weights; between them any differentiable ATen operation will do.
  // A pass says where tokens stand, which documents they belong to, and what is dropped.
  at::Tensor block(int64_t index, const at::Tensor& x, const Pass& pass, ops::KeyValueCache* cache) override {
    const Block& b = blocks_.at(static_cast<size_t>(index));
    const ops::AttentionShape heads{shape_.heads, shape_.kv_heads, shape_.head_dim};
    const at::Tensor n = ops::rms_norm(x, b.norm->weight(), shape_.norm_eps);
    const at::Tensor qkv = ops::linear(n, b.qkv->weight());
    const ops::AttentionMask mask{shape_.sliding_window, pass.segments, nullptr};
    const at::Tensor mixed = cache != nullptr
                                 ? ops::cached_attention(qkv, heads, rotary_, pass.positions, *cache, mask.window)
                                 : ops::causal_attention(qkv, heads, rotary_, pass.positions, mask);
    const at::Tensor inner = ops::linear(n, b.up->weight()).relu().square();
    const at::Tensor both = ops::linear(mixed, b.output->weight()) + ops::linear(inner, b.down->weight());
    return x + ops::dropout(both, pass.dropout, "blocks." + std::to_string(index));
  }

  at::Tensor final_norm(const at::Tensor& x) override { return ops::rms_norm(x, norm_->weight(), shape_.norm_eps); }
  nn::Parameter& head() override { return *head_; }

 private:
  struct Block {
    nn::Parameter *norm, *qkv, *output, *up, *down;
  };
  nn::Parameter *embedding_, *norm_, *head_;
  std::vector<Block> blocks_;
  ops::RotaryTable rotary_;
  at::Tensor anchor_;
};

// What this model cannot be. An option that it would not honour is refused here too.
std::vector<std::string> faults(const ModelShape& m) {
  std::vector<std::string> found;
  if (m.tied) found.push_back("model.tied = true: the head of a parallel decoder is its own; false works");
  if (m.qkv_bias || m.qk_norm) found.push_back("model.qkv_bias and model.qk_norm: a parallel decoder has neither");
  if (m.head_dim % 2 != 0)
    found.push_back("model.head_dim = " + std::to_string(m.head_dim) +
                    " is odd, and rotary positions turn pairs of features; " + std::to_string(m.head_dim + 1) +
                    " works");
  if (m.kv_heads > 0 && m.heads % m.kv_heads != 0)
    found.push_back("model.kv_heads = " + std::to_string(m.kv_heads) + " does not divide model.heads = " +
                    std::to_string(m.heads) + "; 1 and " + std::to_string(m.heads) + " do");
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  trireme::models::register_architecture("parallel", trireme::models::make<ParallelDecoder>,
                                         "attention and feed-forward side by side, squared ReLU.", faults,
                                         {{"deviation", 0.02, "of the initial weights"}});
  return trireme::cli::main(argc, argv);
}
