#include "aten_operations.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "ops/dispatch.h"
#include "ops/rotary.h"

namespace trireme::bench {
namespace {

using Call = std::function<void()>;
using Tensors = std::vector<at::Tensor>;

// A forward pass over inputs that want gradients.
struct Graph {
  Tensors inputs;
  std::function<Tensors()> apply;
};

class Operands {
 public:
  Operands(const train::OperationSize& size, at::ScalarType dtype) : s(size), dtype(dtype) {}

  at::Tensor make(at::IntArrayRef sizes, int64_t number = 0) const { return train::operand(sizes, dtype, number); }
  at::Tensor input(at::IntArrayRef sizes, int64_t number = 0) const { return make(sizes, number).requires_grad_(); }
  at::Tensor tokens() const { return at::arange(s.tokens()).mul(7919).remainder(s.vocab).view({s.batch, s.seq}); }

  Graph norm(bool layer, bool with_delta) const {
    const at::Tensor weight = input({s.hidden}, 1), bias = input({s.hidden}, 2), x = input({s.tokens(), s.hidden}),
                     delta = input({s.tokens(), s.hidden}, 3);
    const auto apply = [=, width = s.hidden]() -> Tensors {
      const at::Tensor h = with_delta ? x + delta : x;
      const at::Tensor y =
          layer ? at::layer_norm(h, {width}, weight, bias, 1e-5) : at::rms_norm(h, {width}, weight, 1e-5);
      return with_delta ? Tensors{y, h} : Tensors{y};
    };
    Tensors inputs = {x, weight};
    if (layer) inputs.push_back(bias);
    return {inputs, apply};
  }

  Graph attention() const {
    const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
    const at::Tensor qkv = input({s.batch, s.seq, width});
    const auto apply = [qkv, s = s]() -> Tensors {
      const auto heads = [&](int64_t first, int64_t count) {
        const at::Tensor part = qkv.view({s.batch, s.seq, -1, s.head_dim}).narrow(2, first, count).transpose(1, 2);
        return count == s.heads ? part : part.repeat_interleave(s.heads / count, 1);
      };
      const at::Tensor out = at::scaled_dot_product_attention(heads(0, s.heads), heads(s.heads, s.kv_heads),
                                                              heads(s.heads + s.kv_heads, s.kv_heads), {}, 0.0, true);
      return {out.transpose(1, 2).reshape({s.batch, s.seq, s.heads * s.head_dim})};
    };
    return {{qkv}, apply};
  }

  Graph swiglu() const {
    const at::Tensor x = input({s.tokens(), 2 * s.ffn});
    return {{x}, [x]() -> Tensors {
              const Tensors parts = x.chunk(2, -1);
              return {at::silu(parts[0]) * parts[1]};
            }};
  }

  Graph gelu() const {
    const at::Tensor x = input({s.tokens(), s.ffn});
    return {{x}, [x]() -> Tensors { return {at::gelu(x, "tanh")}; }};
  }

  Graph dropout() const {
    const at::Tensor x = input({s.batch, s.seq, s.hidden});
    return {{x}, [x]() -> Tensors { return {at::dropout(x, 0.1, true)}; }};
  }

  // x cos + (-x2, x1) sin over query and key heads, as Hugging Face writes it.
  Call rotary(bool inverse) const {
    const int64_t heads = s.heads + s.kv_heads, half = s.head_dim / 2;
    const auto table = ops::make_rotary_table(s.seq, s.head_dim, 1e4, {}, ops::compute_type(dtype), at::kCPU);
    const auto wide = [&](const at::Tensor& angles) {
      return at::cat({angles, angles}, -1).to(dtype).view({1, s.seq, 1, s.head_dim});
    };
    const at::Tensor x = make({s.batch, s.seq, heads, s.head_dim}), cosine = wide(table.cosine),
                     sine = inverse ? wide(table.sine).neg() : wide(table.sine);
    return [=] {
      const at::Tensor turned = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
      x* cosine + turned* sine;
    };
  }

  // The gradient of the table is summed, and kept, in the compute type.
  Call embedding_backward() const {
    return
        [ids = tokens(), gradient = make({s.batch, s.seq, s.hidden}), vocab = s.vocab,
         wide = ops::compute_type(dtype)] { at::embedding_dense_backward(gradient.to(wide), ids, vocab, -1, false); };
  }

  Call loss() const {
    const at::Tensor weight = make({s.vocab, s.hidden}).mul_(0.02).requires_grad_(),
                     hidden = input({s.tokens(), s.hidden}), labels = tokens().view({-1});
    return [=] {
      const at::Tensor logits = at::linear(hidden, weight);
      torch::autograd::grad({at::cross_entropy_loss(logits, labels)}, {hidden, weight});
    };
  }

  Call linear(const std::string& part) const {
    const at::Tensor x = make({s.tokens(), s.hidden}), dy = make({s.tokens(), s.ffn}), w = make({s.ffn, s.hidden}, 1);
    if (part == "forward") return [=] { at::linear(x, w); };
    if (part == "input gradient") return [=] { at::mm(dy, w); };
    const at::Tensor gradient = at::zeros({s.ffn, s.hidden}, ops::compute_type(dtype));
    if (dtype == gradient.scalar_type())
      return [gradient = gradient, dy, x]() mutable { at::mm_out(gradient, dy.t(), x); };
    return [=] { gradient.copy_(at::mm(dy.t(), x)); };
  }

  // Master weights in the compute type, and the copy that computes.
  Call adamw() const {
    const at::ScalarType wide = ops::compute_type(dtype);
    const int64_t count = s.vocab * s.hidden;
    const at::Tensor weight = train::operand({count}, wide), first = at::zeros_like(weight),
                     second = at::zeros_like(weight), gradient = train::operand({count}, wide, 5),
                     copy = at::zeros({count}, dtype), step = at::tensor(10.0F);
    return [=, copies = dtype != wide] {
      at::_fused_adamw_({weight}, {gradient}, {first}, {second}, {}, {step}, 1e-4, 0.9, 0.95, 0.1, 1e-8, false, false);
      if (copies) copy.copy_(weight);
    };
  }

  Call sum_of_squares() const {
    const at::Tensor gradient = train::operand({s.vocab * s.hidden}, ops::compute_type(dtype));
    return [gradient] { at::linalg_vector_norm(gradient, 2, {}, false, at::kDouble); };  // ours sums in double, too
  }

  const train::OperationSize s;
  const at::ScalarType dtype;
};

Call forward_of(const Graph& graph) {
  return [graph] { graph.apply(); };
}

Call backward_of(const Graph& graph) {
  const Tensors outputs = graph.apply();
  Tensors gradients;
  for (const at::Tensor& output : outputs) gradients.push_back(at::ones_like(output));
  return [=] { torch::autograd::grad(outputs, graph.inputs, gradients, /*retain_graph=*/true); };
}

}  // namespace

std::function<Call()> aten_operation(const std::string& name, const train::OperationSize& size, at::ScalarType dtype) {
  const Operands operands(size, dtype);
  const std::map<std::string, std::function<Graph()>> graphs = {
      {"rms_norm", [=] { return operands.norm(false, false); }},
      {"add_rms_norm", [=] { return operands.norm(false, true); }},
      {"layer_norm", [=] { return operands.norm(true, false); }},
      {"add_layer_norm", [=] { return operands.norm(true, true); }},
      {"attention", [=] { return operands.attention(); }},
      {"swiglu", [=] { return operands.swiglu(); }},
      {"gelu", [=] { return operands.gelu(); }},
      {"dropout", [=] { return operands.dropout(); }},
  };
  const std::map<std::string, std::function<Call()>> calls = {
      {"embedding backward", [=] { return operands.embedding_backward(); }},
      {"rotary forward", [=] { return operands.rotary(false); }},
      {"rotary backward", [=] { return operands.rotary(true); }},
      {"linear_cross_entropy forward + backward", [=] { return operands.loss(); }},
      {"linear forward", [=] { return operands.linear("forward"); }},
      {"linear input gradient", [=] { return operands.linear("input gradient"); }},
      {"linear weight gradient", [=] { return operands.linear("weight gradient"); }},
      {"adamw", [=] { return operands.adamw(); }},
      {"sum_of_squares", [=] { return operands.sum_of_squares(); }},
  };
  if (const auto call = calls.find(name); call != calls.end()) return call->second;
  const auto graph = graphs.find(name.substr(0, name.find(' ')));
  if (graph == graphs.end()) return {};
  const bool forward = name.ends_with(" forward");
  return [make = graph->second, forward] { return forward ? forward_of(make()) : backward_of(make()); };
}

}  // namespace trireme::bench
