// Each fused operation against its plain reference from ATen operations, forward and every gradient, over awkward
// shapes. In fp64 the two must agree to rounding; in fp32 to a few of its units; in bf16 within the type's own
// rounding.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>

#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/dispatch.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/rms_norm.h"
#include "ops/sum_of_squares.h"
#include "ops/swiglu.h"

namespace trireme::ops {
namespace {

class Sink final : public GradientSink {
 public:
  explicit Sink(const at::Tensor& weight)
      : buffer(at::full(weight.sizes(), NAN, weight.options().dtype(compute_type(weight.scalar_type())))) {}
  GradientTarget target() override { return {buffer, contributions > 0}; }
  void delivered() override { ++contributions; }

  at::Tensor buffer;
  int contributions = 0;
};

double tolerance(at::ScalarType type) { return type == at::kDouble ? 1e-12 : type == at::kFloat ? 5e-6 : 2e-2; }

// The largest difference over the largest magnitude of the reference, or `scale` where terms of that size cancel.
void expect_close(const at::Tensor& got, const at::Tensor& expected, double tol, const std::string& what,
                  double least_scale = 1e-30) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  if (got.numel() == 0) return;
  const at::Tensor a = got.to(at::kDouble), b = expected.to(at::kDouble);
  const double scale = std::max(b.abs().max().item<double>(), least_scale);
  const double difference = (a - b).abs().max().item<double>();
  EXPECT_LE(difference / scale, tol) << what << ": difference " << difference << ", scale " << scale;
}

struct Shape {
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {{0, 8}, {1, 1}, {1, 17}, {3, 16}, {7, 31}, {129, 64}, {260, 33}, {513, 288}};
constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16};

std::string name(at::ScalarType type, Shape shape) {
  return std::string(c10::toString(type)) + " " + std::to_string(shape.rows) + "x" + std::to_string(shape.cols);
}

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType type) { return at::randn(sizes, type).requires_grad_(); }
at::Tensor twin(const at::Tensor& x) { return x.detach().to(compute_type(x.scalar_type())).requires_grad_(); }

TEST(Ops, RmsNormMatchesReference) {
  at::manual_seed(1);
  for (const auto type : kTypes) {
    for (const auto shape : kShapes) {
      const at::Tensor x = leaf({shape.rows, shape.cols}, type), w = at::randn({shape.cols}, type),
                       dy = at::randn_like(x);
      Sink sink(w);
      const at::Tensor y = rms_norm(x, {w, &sink}, 1e-5);
      y.backward(dy);
      const at::Tensor x2 = twin(x), w2 = twin(w);
      const at::Tensor y2 = reference::rms_norm(x2, w2, 1e-5);
      y2.backward(dy.to(x2.scalar_type()));
      const std::string row = name(type, shape);
      expect_close(y, y2, tolerance(type), row + " y");
      // Of a row of one column nothing is left but eps: dx is a difference of terms the size of dy.
      const double terms = shape.cols == 1 ? dy.abs().max().item<double>() : 0;
      expect_close(x.grad(), x2.grad(), tolerance(type), row + " dx", terms);
      EXPECT_EQ(sink.contributions, 1) << row;
      expect_close(sink.buffer, w2.grad(), tolerance(type), row + " dw");
    }
  }
}

TEST(Ops, AddRmsNormMatchesReference) {
  at::manual_seed(2);
  for (const auto type : kTypes) {
    for (const auto shape : kShapes) {
      const at::Tensor x = leaf({shape.rows, shape.cols}, type), d = leaf({shape.rows, shape.cols}, type),
                       w = at::randn({shape.cols}, type), dh = at::randn_like(x), dy = at::randn_like(x);
      Sink sink(w);
      const auto [h, y] = add_rms_norm(x, d, {w, &sink}, 1e-5);
      torch::autograd::backward({h, y}, {dh, dy});
      const at::Tensor x2 = twin(x), d2 = twin(d), w2 = twin(w);
      const at::Tensor h2 = (x2 + d2), y2 = reference::rms_norm(h2, w2, 1e-5);
      torch::autograd::backward({h2, y2}, {dh.to(h2.scalar_type()), dy.to(h2.scalar_type())});
      const std::string row = name(type, shape);
      expect_close(h, h2, tolerance(type), row + " h");
      expect_close(y, y2, tolerance(type), row + " y");
      expect_close(x.grad(), x2.grad(), tolerance(type), row + " dx");
      expect_close(d.grad(), x2.grad(), tolerance(type), row + " ddelta");
      expect_close(sink.buffer, w2.grad(), tolerance(type), row + " dw");
    }
  }
}

TEST(Ops, SwigluMatchesReference) {
  at::manual_seed(3);
  for (const auto type : kTypes) {
    for (const auto shape : kShapes) {
      const at::Tensor x = leaf({shape.rows, 2 * shape.cols}, type);
      const at::Tensor y = swiglu(x), dy = at::randn_like(y);
      y.backward(dy);
      const at::Tensor x2 = twin(x);
      const at::Tensor y2 = reference::swiglu(x2);
      y2.backward(dy.to(x2.scalar_type()));
      expect_close(y, y2, tolerance(type), name(type, shape) + " y");
      expect_close(x.grad(), x2.grad(), tolerance(type), name(type, shape) + " dx");
    }
  }
}

TEST(Ops, LinearMatchesMatmulAndAccumulates) {
  at::manual_seed(4);
  for (const auto type : kTypes) {
    for (const auto shape : kShapes) {
      const at::Tensor x = leaf({shape.rows, shape.cols}, type), w = at::randn({13, shape.cols}, type);
      Sink sink(w);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch)
        linear(x, {w, &sink}).backward(at::ones({shape.rows, 13}, type));
      const at::Tensor x2 = twin(x), w2 = twin(w);
      at::mm(x2, w2.t()).backward(at::ones({shape.rows, 13}, x2.scalar_type()));
      const std::string row = name(type, shape);
      expect_close(x.grad(), 2 * x2.grad(), tolerance(type), row + " dx");
      EXPECT_EQ(sink.contributions, 2) << row;
      expect_close(sink.buffer, 2 * w2.grad(), tolerance(type), row + " dw");
    }
  }
}

TEST(Ops, LinearWithoutSinkLeavesTheWeightAlone) {
  const at::Tensor x = leaf({3, 4}, at::kFloat), w = at::randn({2, 4});
  linear(x, {w, nullptr}).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Ops, EmbeddingGradientSumsEqualTokens) {
  at::manual_seed(5);
  for (const auto type : kTypes) {
    const at::Tensor w = at::randn({11, 37}, type), tokens = at::randint(0, 11, {4, 29}, at::kLong);
    const at::Tensor anchor = at::zeros({}, at::TensorOptions(type)).requires_grad_();
    Sink sink(w);
    const at::Tensor y = embedding(tokens, {w, &sink}, anchor), dy = at::randn_like(y);
    y.backward(dy);
    const at::Tensor w2 = twin(w);
    at::embedding(w2, tokens).backward(dy.to(w2.scalar_type()));
    expect_close(sink.buffer, w2.grad(), tolerance(type), c10::toString(type));
    EXPECT_FALSE(anchor.grad().defined() && anchor.grad().abs().sum().item<double>() != 0);
  }
}

TEST(Ops, CausalAttentionMatchesReference) {
  at::manual_seed(6);
  struct Row {
    int64_t batch, seq, heads, kv_heads, head_dim;
  };
  for (const Row r :
       {Row{1, 1, 1, 1, 2}, Row{2, 5, 4, 2, 6}, Row{1, 33, 6, 1, 16}, Row{3, 64, 4, 4, 32}, Row{2, 130, 6, 3, 48}}) {
    for (const auto type : kTypes) {
      const AttentionShape shape{r.heads, r.kv_heads, r.head_dim};
      const RotaryTable table = make_rotary_table(r.seq, r.head_dim, 10000, std::nullopt, compute_type(type), at::kCPU);
      const at::Tensor positions = at::arange(r.seq, at::kLong).repeat({r.batch});
      const at::Tensor x = leaf({r.batch, r.seq, (r.heads + 2 * r.kv_heads) * r.head_dim}, type);
      const at::Tensor x2 = twin(x);
      const at::Tensor y = causal_attention(x.clone(), shape, table, positions), dy = at::randn_like(y);
      y.backward(dy);
      const RotaryTable table2 = make_rotary_table(r.seq, r.head_dim, 10000, std::nullopt, x2.scalar_type(), at::kCPU);
      const at::Tensor y2 = reference::causal_attention(x2, shape, table2, positions);
      y2.backward(dy.to(x2.scalar_type()));
      const std::string row = std::string(c10::toString(type)) + " seq " + std::to_string(r.seq);
      expect_close(y, y2, tolerance(type), row + " y");
      expect_close(x.grad(), x2.grad(), 2 * tolerance(type), row + " dx");
    }
  }
}

TEST(Ops, CachedAttentionEqualsWholeSequence) {
  at::manual_seed(7);
  const AttentionShape shape{4, 2, 8};
  const int64_t seq = 19;
  const RotaryTable table = make_rotary_table(seq, 8, 10000, std::nullopt, at::kDouble, at::kCPU);
  const at::Tensor x = at::randn({1, seq, 64}, at::kDouble), positions = at::arange(seq, at::kLong);
  const at::Tensor whole = reference::causal_attention(x, shape, table, positions);
  KeyValueCache cache{at::zeros({1, 2, seq, 8}, at::kDouble), at::zeros({1, 2, seq, 8}, at::kDouble), 0};
  std::vector<at::Tensor> parts;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 7}, {7, 1}, {8, 4}, {12, 7}})
    parts.push_back(
        cached_attention(x.narrow(1, first, count), shape, table, positions.narrow(0, first, count), cache));
  expect_close(at::cat(parts, 1), whole, 1e-12, "cached");
}

TEST(Ops, LinearCrossEntropyMatchesReference) {
  at::manual_seed(8);
  struct Row {
    int64_t tokens, hidden, vocab;
    const char* labels;
  };
  for (const Row r : {Row{1, 1, 2, "all"}, Row{5, 8, 17, "some"}, Row{5, 8, 17, "none"}, Row{300, 32, 4097, "some"},
                      Row{700, 24, 30001, "some"}}) {
    for (const auto type : kTypes) {
      const at::Tensor h = leaf({r.tokens, r.hidden}, type), w = at::randn({r.vocab, r.hidden}, type);
      at::Tensor labels = at::randint(0, r.vocab, {r.tokens}, at::kLong);
      if (r.labels == std::string("some"))
        labels.index_put_({at::arange(0, r.tokens, 3, at::kLong)}, at::scalar_tensor(kIgnoredLabel, at::kLong));
      if (r.labels == std::string("none")) labels.fill_(kIgnoredLabel);
      Sink sink(w);
      const at::Tensor loss = linear_cross_entropy(h, {w, &sink}, labels, 0.25);
      (loss * 3).backward();
      const at::Tensor h2 = twin(h), w2 = twin(w);
      const at::Tensor loss2 = reference::linear_cross_entropy(h2, w2, labels, 0.25);
      (loss2 * 3).backward();
      const std::string row = std::string(c10::toString(type)) + " vocab " + std::to_string(r.vocab) + " " + r.labels;
      expect_close(loss, loss2, tolerance(type), row + " loss");
      expect_close(h.grad(), h2.grad(), tolerance(type), row + " dhidden");
      expect_close(sink.buffer, w2.grad(), tolerance(type), row + " dw");
      const at::Tensor each = token_losses(h.detach(), w, labels);
      expect_close(each.sum() * 0.25, loss2, tolerance(type), row + " token losses");
    }
  }
}

TEST(Ops, LinearCrossEntropyShowsANan) {
  for (const auto type : kTypes) {
    at::Tensor h = at::randn({4, 8}, type);
    h[1][2] = NAN;
    const at::Tensor labels = at::zeros({4}, at::kLong);
    EXPECT_TRUE(std::isnan(linear_cross_entropy(h, {at::randn({33, 8}, type), nullptr}, labels, 1.0).item<double>()));
  }
}

TEST(Ops, AdamwMatchesReference) {
  at::manual_seed(9);
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const int64_t count : {0, 1, 17, 100003}) {
      const at::Tensor w = at::randn({count}, type), g = at::randn({count}, type);
      const at::Tensor m = at::zeros_like(w), v = at::zeros_like(w),
                       copy = type == at::kFloat ? at::empty({count}, at::kBFloat16) : at::Tensor();
      const at::Tensor w2 = w.clone(), m2 = m.clone(), v2 = v.clone();
      for (int64_t step = 1; step <= 3; ++step) {
        const AdamwStep settings{1e-2, 0.9, 0.95, 1e-8, 0.1, step, 0.5};
        adamw(w, m, v, g, copy, settings);
        reference::adamw(w2, m2, v2, g, {}, settings);
      }
      const std::string row = std::string(c10::toString(type)) + " " + std::to_string(count);
      expect_close(w, w2, tolerance(type), row + " weight");
      expect_close(m, m2, tolerance(type), row + " exp_avg");
      expect_close(v, v2, tolerance(type), row + " exp_avg_sq");
      if (copy.defined()) {
        EXPECT_TRUE(copy.equal(w.to(at::kBFloat16))) << row;
      }
    }
  }
}

TEST(Ops, SumOfSquares) {
  for (const int64_t count : {0, 1, 65536, 65537, 1000003}) {
    const at::Tensor x = at::randn({count}, at::kFloat);
    EXPECT_NEAR(sum_of_squares(x), x.to(at::kDouble).square().sum().item<double>(),
                1e-9 * (1 + static_cast<double>(count)));
  }
  EXPECT_TRUE(std::isnan(sum_of_squares(at::full({70000}, NAN))));
}

// Compiled or linked without OpenMP, at::parallel_for in our own code would run on one thread and nobody would notice.
TEST(Ops, OurCodeRunsOnTheThreadTeam) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  std::atomic<int> pieces{0};
  at::parallel_for(0, 2, 1, [&](int64_t, int64_t) { ++pieces; });
  EXPECT_EQ(pieces.load(), 2);
  at::set_num_threads(before);
}

// Of our kernels; matrix products and attention are libraries' (see docs/decisions.md).
TEST(Ops, ResultsDoNotDependOnTheNumberOfThreads) {
  const auto flat = [](std::vector<at::Tensor> parts) {
    for (at::Tensor& part : parts) part = part.detach().to(at::kDouble).reshape({-1});
    return at::cat(parts);
  };
  struct Row {
    const char* name;
    std::function<at::Tensor(at::ScalarType)> run;
  };
  const Row rows[] = {
      {"rms_norm",
       [&](at::ScalarType type) {
         const at::Tensor x = leaf({1000, 96}, type), d = leaf({1000, 96}, type), w = at::randn({96}, type);
         Sink sink(w);
         const auto [h, y] = add_rms_norm(x, d, {w, &sink}, 1e-5);
         torch::autograd::backward({h, y}, {at::randn_like(h), at::randn_like(y)});
         return flat({h, y, x.grad(), sink.buffer});
       }},
      {"swiglu",
       [&](at::ScalarType type) {
         const at::Tensor x = leaf({700, 192}, type), y = swiglu(x);
         y.backward(at::randn_like(y));
         return flat({y, x.grad()});
       }},
      {"embedding",
       [&](at::ScalarType type) {
         const at::Tensor w = at::randn({50, 96}, type), tokens = at::randint(0, 50, {3, 400}, at::kLong);
         Sink sink(w);
         const at::Tensor y = embedding(tokens, {w, &sink}, at::zeros({}, w.options()).requires_grad_());
         y.backward(at::randn_like(y));
         return flat({sink.buffer});
       }},
      {"adamw",
       [&](at::ScalarType type) {
         const at::ScalarType master = compute_type(type);
         const at::Tensor w = at::randn({100003}, master), m = at::zeros_like(w), v = at::zeros_like(w),
                          copy = type == master ? at::Tensor() : at::empty({100003}, type);
         adamw(w, m, v, at::randn_like(w), copy, {1e-2, 0.9, 0.95, 1e-8, 0.1, 1, 0.5});
         return flat({w, m, v});
       }},
      {"sum_of_squares",
       [&](at::ScalarType type) {
         return at::full({1}, sum_of_squares(at::randn({1000003}, compute_type(type))), at::kDouble);
       }},
  };
  const int before = at::get_num_threads();
  for (const Row& row : rows) {
    for (const auto type : kTypes) {
      std::vector<at::Tensor> results;
      for (const int threads : {1, 2, 3}) {
        at::set_num_threads(threads);
        at::manual_seed(10);
        results.push_back(row.run(type));
      }
      EXPECT_TRUE(results[0].equal(results[1])) << row.name << " " << c10::toString(type) << ", 2 threads";
      EXPECT_TRUE(results[0].equal(results[2])) << row.name << " " << c10::toString(type) << ", 3 threads";
    }
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace trireme::ops
