#include "train/operation_cases.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/dispatch.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/linear_cross_entropy.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/rotary.h"
#include "ops/sum_of_squares.h"

namespace trireme::train {
namespace {

using Call = std::function<void()>;
using Tensors = std::vector<at::Tensor>;

// Where a weight's gradient goes: overwritten each time, as by the first micro-batch of a step.
struct Sink final : ops::GradientSink {
  explicit Sink(const at::Tensor& weight)
      : buffer(at::zeros(weight.sizes(), weight.options().dtype(ops::compute_type(weight.scalar_type())))) {}
  ops::GradientTarget target() override { return {buffer, false}; }
  void delivered() override {}
  at::Tensor buffer;
};

// A weight and its sink.
struct Trained {
  at::Tensor value;
  std::shared_ptr<Sink> sink = std::make_shared<Sink>(value);
  ops::Weight weight() const { return {value, sink.get()}; }
};

// The backward of outputs, again and again over one graph. `keep`: what the graph points to.
Call backward_of(Tensors outputs, Tensors inputs, const Tensors& gradients, std::vector<Trained> keep = {}) {
  return [=, keep = std::move(keep)] {
    torch::autograd::grad(outputs, inputs, gradients, /*retain_graph=*/true, false, /*allow_unused=*/true);
  };
}

// An operation on operands of its own.
struct Graph {
  std::function<Tensors()> apply;
  at::Tensor input;  // that backward makes the gradient of
  std::vector<Trained> weights = {};
};

struct Maker {
  OperationSize size;
  at::ScalarType dtype;

  at::Tensor make(at::IntArrayRef sizes, int64_t number = 0) const { return operand(sizes, dtype, number); }
  at::Tensor input(at::IntArrayRef sizes, int64_t number = 0) const { return make(sizes, number).requires_grad_(); }
  at::Tensor tokens() const {
    return at::arange(size.tokens()).mul(7919).remainder(size.vocab).view({size.batch, size.seq});
  }
};

class Cases {
 public:
  Cases(const OperationSize& size, at::ScalarType dtype)
      : maker_{size, dtype}, s_(size), dtype_(dtype), element_(static_cast<double>(c10::elementSize(dtype))) {}

  std::vector<OperationCase> all() {
    embedding();
    norm("rms_norm", false, false);
    norm("add_rms_norm", false, true);
    norm("layer_norm", true, false);
    norm("add_layer_norm", true, true);
    rotary();
    attention();
    linear();
    activation("swiglu", 2, ops::swiglu);
    activation("gelu", 1, ops::gelu);
    dropout();
    loss();
    optimizer();
    return std::move(cases_);
  }

 private:
  void add(std::string name, int64_t rows, int64_t cols, double flops, double bytes, std::function<Call()> prepare) {
    cases_.push_back({std::move(name), fmt::format("{} x {}", rows, cols), flops, bytes, std::move(prepare)});
  }
  struct Cost {
    double flops, bytes;
  };
  /// Two cases: forward, and backward from gradients of one over a graph that is kept.
  void forward_and_backward(const std::string& name, int64_t rows, int64_t cols, Cost forward, Cost backward,
                            const std::function<Graph()>& graph) {
    add(name + " forward", rows, cols, forward.flops, forward.bytes,
        [graph] { return Call([apply = graph().apply] { apply(); }); });
    add(name + " backward", rows, cols, backward.flops, backward.bytes, [graph] {
      const Graph made = graph();
      const Tensors outputs = made.apply();
      Tensors gradients;
      for (const at::Tensor& output : outputs) gradients.push_back(at::ones_like(output));
      return backward_of(outputs, {made.input}, gradients, made.weights);
    });
  }
  double size_of(int64_t rows, int64_t cols) const { return static_cast<double>(rows * cols) * element_; }

  void embedding() {
    const int64_t rows = s_.tokens(), cols = s_.hidden;
    const double wide = dtype_ == at::kDouble ? 8 : 4, table = static_cast<double>(s_.vocab * cols) * wide;
    add("embedding backward", rows, cols, 0, table + size_of(rows, cols) + 2 * wide * static_cast<double>(rows * cols),
        [m = maker_] {
          const Trained weight{m.make({m.size.vocab, m.size.hidden})};
          const at::Tensor anchor = at::zeros({}, m.dtype).requires_grad_();
          const at::Tensor y = ops::embedding(m.tokens(), weight.weight(), anchor);
          return backward_of({y}, {anchor}, {m.make(y.sizes())}, {weight});
        });
  }

  void norm(const std::string& name, bool layer, bool with_delta) {
    const int64_t rows = s_.tokens(), cols = s_.hidden;
    const double one = size_of(rows, cols);
    forward_and_backward(name, rows, cols, {0, (with_delta ? 4 : 2) * one}, {0, (with_delta ? 4 : 3) * one},
                         [m = maker_, layer, with_delta, rows, cols]() -> Graph {
                           const Trained weight{m.make({cols}, 1)}, bias{m.make({cols}, 2)};
                           const at::Tensor x = m.input({rows, cols}), delta = m.input({rows, cols}, 3);
                           const auto apply = [=]() -> Tensors {
                             if (!with_delta)
                               return {layer ? ops::layer_norm(x, weight.weight(), bias.weight(), 1e-5)
                                             : ops::rms_norm(x, weight.weight(), 1e-5)};
                             const auto [h, y] =
                                 layer ? ops::add_layer_norm(x, delta, weight.weight(), bias.weight(), 1e-5)
                                       : ops::add_rms_norm(x, delta, weight.weight(), 1e-5);
                             return {y, h};
                           };
                           return {apply, x, {weight, bias}};
                         });
  }

  void rotary() {
    const int64_t rows = s_.tokens(), heads = s_.heads + s_.kv_heads, width = (heads + s_.kv_heads) * s_.head_dim;
    if (s_.head_dim % 2 != 0) return;
    for (const bool inverse : {false, true})
      add(inverse ? "rotary backward" : "rotary forward", rows, heads * s_.head_dim, 0,
          2 * size_of(rows, heads * s_.head_dim), [m = maker_, heads, width, inverse] {
            const OperationSize& s = m.size;
            const auto table = ops::make_rotary_table(s.seq, s.head_dim, 1e4, {}, ops::compute_type(m.dtype), at::kCPU);
            const at::Tensor x = m.make({s.batch, s.seq, width}), positions = at::arange(s.seq).repeat({s.batch});
            return Call([=] { ops::rotate(x, heads, s.head_dim, table, positions, inverse); });
          });
  }

  void attention() {
    const int64_t rows = s_.tokens(), query = s_.heads * s_.head_dim,
                  width = (s_.heads + 2 * s_.kv_heads) * s_.head_dim;
    const double flops = 4 * static_cast<double>(query * rows) * describe::causal_tokens_seen(s_.seq, 0);
    forward_and_backward(
        "attention", rows, query, {flops, size_of(rows, width) + size_of(rows, query)},
        {2 * flops, 2 * size_of(rows, width) + 2 * size_of(rows, query)}, [m = maker_, width]() -> Graph {
          const OperationSize& s = m.size;
          const at::Tensor qkv = m.input({s.batch, s.seq, width}), positions = at::arange(s.seq).repeat({s.batch});
          return {[=]() -> Tensors {
                    return {ops::causal_attention(qkv, {s.heads, s.kv_heads, s.head_dim}, {}, positions)};
                  },
                  qkv};
        });
  }

  // The first projection of a feed-forward layer; its weight's gradient is in the compute type.
  void linear() {
    const int64_t rows = s_.tokens(), in = s_.hidden, out = s_.ffn;
    const double wide = dtype_ == at::kDouble ? 8 : 4, flops = 2 * static_cast<double>(rows * in * out);
    const double x = size_of(rows, in), y = size_of(rows, out), weight = size_of(in, out);
    add("linear forward", rows, out, flops, x + y + weight, [m = maker_, rows, in, out] {
      return Call([x = m.make({rows, in}), w = m.make({out, in}, 1)] { ops::product(x, w.t()); });
    });
    add("linear input gradient", rows, in, flops, x + y + weight, [m = maker_, rows, in, out] {
      return Call([dy = m.make({rows, out}), w = m.make({out, in}, 1)] { ops::product(dy, w); });
    });
    add("linear weight gradient", out, in, flops, x + y + weight * wide / element_, [m = maker_, rows, in, out] {
      const at::Tensor gradient = at::zeros({out, in}, ops::compute_type(m.dtype));
      return Call(
          [=, dy = m.make({rows, out}), x = m.make({rows, in}, 1)] { ops::add_product(gradient, dy.t(), x, false); });
    });
  }

  // `parts`: widths of ffn that it reads for one that it writes.
  void activation(const std::string& name, int64_t parts, at::Tensor (*apply)(const at::Tensor&)) {
    const int64_t rows = s_.tokens(), cols = s_.ffn;
    const auto read = static_cast<double>(parts);
    forward_and_backward(name, rows, cols, {0, (read + 1) * size_of(rows, cols)},
                         {0, (2 * read + 1) * size_of(rows, cols)}, [=, m = maker_]() -> Graph {
                           const at::Tensor x = m.input({rows, parts * cols});
                           return {[=]() -> Tensors { return {apply(x)}; }, x};
                         });
  }

  void dropout() {
    const int64_t rows = s_.tokens(), cols = s_.hidden;
    forward_and_backward("dropout", rows, cols, {0, 2 * size_of(rows, cols)}, {0, 2 * size_of(rows, cols)},
                         [m = maker_]() -> Graph {
                           const OperationSize& s = m.size;
                           const at::Tensor x = m.input({s.batch, s.seq, s.hidden});
                           const ops::Dropout dropout{0.1, 1, at::arange(s.batch)};
                           return {[=]() -> Tensors { return {ops::dropout(x, dropout, "bench")}; }, x};
                         });
  }

  // Its gradients are made in its forward pass.
  void loss() {
    const int64_t rows = s_.tokens();
    const double flops = 6 * static_cast<double>(rows) * static_cast<double>(s_.vocab * s_.hidden);
    add("linear_cross_entropy forward + backward", rows, s_.vocab, flops,
        4 * size_of(rows, s_.vocab) + 4 * size_of(s_.vocab, s_.hidden), [m = maker_, rows] {
          const OperationSize& s = m.size;
          const Trained weight{m.make({s.vocab, s.hidden}).mul_(0.02)};
          const at::Tensor hidden = m.input({rows, s.hidden}), labels = m.tokens().view({-1});
          return Call([=] {
            const at::Tensor loss =
                ops::linear_cross_entropy(hidden, weight.weight(), labels, 1.0 / static_cast<double>(rows));
            torch::autograd::grad({loss}, {hidden});
          });
        });
  }

  // Of the largest parameter, the embedding.
  void optimizer() {
    const at::ScalarType wide = ops::compute_type(dtype_);
    const auto count = static_cast<double>(s_.vocab * s_.hidden), master = static_cast<double>(c10::elementSize(wide));
    add("adamw", s_.vocab, s_.hidden, 0, count * (7 * master + (dtype_ == wide ? 0 : element_)), [m = maker_, wide] {
      const int64_t n = m.size.vocab * m.size.hidden;
      const at::Tensor w = operand({n}, wide), exp_avg = at::zeros_like(w), v = at::zeros_like(w),
                       g = operand({n}, wide, 5), copy = m.dtype == wide ? at::Tensor() : at::zeros({n}, m.dtype);
      return Call([=] { ops::adamw(w, exp_avg, v, g, copy, {1e-4, 0.9, 0.95, 1e-8, 0.1, 10, 0.5}); });
    });
    add("sum_of_squares", s_.vocab, s_.hidden, 0, count * master, [m = maker_, wide] {
      return Call([g = operand({m.size.vocab * m.size.hidden}, wide)] { ops::sum_of_squares(g); });
    });
  }

  Maker maker_;
  OperationSize s_;
  at::ScalarType dtype_;
  double element_;
  std::vector<OperationCase> cases_;
};

}  // namespace

const std::vector<OperationSize>& bench_sizes() {
  static const std::vector<OperationSize> sizes = {
      {"30m", 4, 512, 384, 6, 6, 64, 1024, 50304},
      {"124m", 4, 1024, 768, 12, 12, 64, 3072, 50257},
      {"350m", 2, 1024, 1024, 16, 8, 64, 2816, 32000},
  };
  return sizes;
}

OperationSize operation_size(const config::Config& config, std::string name) {
  const describe::ModelShape& m = config.model;
  return {std::move(name),
          config.train.micro_batch_size,
          config.train.seq_len,
          m.hidden,
          m.heads,
          m.kv_heads,
          m.head_dim,
          m.ffn,
          m.vocab};
}

std::vector<OperationCase> operation_cases(const OperationSize& size, at::ScalarType dtype) {
  return Cases(size, dtype).all();
}

at::Tensor operand(at::IntArrayRef sizes, at::ScalarType dtype, int64_t number) {
  int64_t count = 1;
  for (const int64_t extent : sizes) count *= extent;
  return at::arange(count, at::kFloat)
      .add_(static_cast<double>(number))
      .mul_(0.7548776662)
      .sin_()
      .to(dtype)
      .view(sizes);
}

}  // namespace trireme::train
