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

#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/dispatch.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/norm.h"
#include "ops/sum_of_squares.h"
#include "support.h"

namespace trireme::ops {
namespace {

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

TEST(Ops, LayerNormMatchesReference) {
  at::manual_seed(11);
  for (const auto type : kTypes) {
    for (const auto shape : kShapes) {
      const at::Tensor x = leaf({shape.rows, shape.cols}, type), d = leaf({shape.rows, shape.cols}, type),
                       w = at::randn({shape.cols}, type), b = at::randn({shape.cols}, type), dh = at::randn_like(x),
                       dy = at::randn_like(x);
      Sink sink(w), bias_sink(b);
      const auto [h, y] = add_layer_norm(x, d, {w, &sink}, {b, &bias_sink}, 1e-5);
      torch::autograd::backward({h, y}, {dh, dy});
      const at::Tensor x2 = twin(x), d2 = twin(d), w2 = twin(w), b2 = twin(b);
      // The sum is rounded to the type before it is normalised, which a row with a small variance magnifies.
      const at::Tensor h2 = (x2 + d2).to(type).to(x2.scalar_type());
      const at::Tensor y2 = reference::layer_norm(h2, w2, b2, 1e-5);
      torch::autograd::backward({h2, y2}, {dh.to(h2.scalar_type()), dy.to(h2.scalar_type())});
      const std::string row = name(type, shape);
      expect_close(h, h2, tolerance(type), row + " h");
      expect_close(y, y2, tolerance(type), row + " y");
      // A row of one column has nothing left but its bias: dx is a difference of terms 1 / sqrt(eps) times the size of
      // dy.
      const double terms = shape.cols == 1 ? dy.abs().max().item<double>() / std::sqrt(1e-5) : 0;
      expect_close(x.grad(), x2.grad(), tolerance(type), row + " dx", terms);
      expect_close(d.grad(), x2.grad(), tolerance(type), row + " ddelta", terms);
      EXPECT_EQ(sink.contributions + bias_sink.contributions, 2) << row;
      expect_close(sink.buffer, w2.grad(), tolerance(type), row + " dw", shape.cols == 1 ? 1 : 1e-30);
      expect_close(bias_sink.buffer, b2.grad(), tolerance(type), row + " db");
      const at::Tensor alone = layer_norm(x.detach(), {w}, {b}, 1e-5);
      expect_close(alone, reference::layer_norm(twin(x), w2, b2, 1e-5), tolerance(type), row + " without the addition");
    }
  }
}

TEST(Ops, QkNormMatchesReference) {
  at::manual_seed(12);
  struct Row {
    int64_t batch, seq, heads, kv_heads, head_dim;
  };
  for (const Row r : {Row{1, 1, 1, 1, 2}, Row{2, 5, 4, 2, 6}, Row{1, 33, 6, 1, 17}, Row{3, 130, 4, 4, 32}}) {
    for (const auto type : kTypes) {
      const at::Tensor x = leaf({r.batch, r.seq, (r.heads + 2 * r.kv_heads) * r.head_dim}, type),
                       q = at::randn({r.head_dim}, type), k = at::randn({r.head_dim}, type);
      Sink q_sink(q), k_sink(k);
      const at::Tensor y = qk_norm(x, r.heads, r.kv_heads, {q, &q_sink}, {k, &k_sink}, 1e-6), dy = at::randn_like(y);
      y.backward(dy);
      const at::Tensor x2 = twin(x), q2 = twin(q), k2 = twin(k);
      const at::Tensor y2 = reference::qk_norm(x2, r.heads, r.kv_heads, q2, k2, 1e-6);
      y2.backward(dy.to(x2.scalar_type()));
      const std::string row = std::string(c10::toString(type)) + " seq " + std::to_string(r.seq);
      expect_close(y, y2, tolerance(type), row + " y");
      expect_close(x.grad(), x2.grad(), tolerance(type), row + " dx");
      expect_close(q_sink.buffer, q2.grad(), tolerance(type), row + " dq");
      expect_close(k_sink.buffer, k2.grad(), tolerance(type), row + " dk");
    }
  }
}

TEST(Ops, GeluMatchesReference) {
  at::manual_seed(13);
  for (const auto type : kTypes) {
    for (const auto shape : kShapes) {
      const at::Tensor x = (3 * at::randn({shape.rows, shape.cols}, type)).requires_grad_();
      const at::Tensor y = ops::gelu(x), dy = at::randn_like(y);
      y.backward(dy);
      const at::Tensor x2 = twin(x);
      const at::Tensor y2 = reference::gelu(x2);
      y2.backward(dy.to(x2.scalar_type()));
      expect_close(y, y2, tolerance(type), name(type, shape) + " y");
      expect_close(x.grad(), x2.grad(), tolerance(type), name(type, shape) + " dx");
    }
  }
  const at::Tensor far = at::tensor({-1e30, -50.0, -10.0, 10.0, 50.0, 1e30}, at::kFloat).requires_grad_();
  const at::Tensor y = ops::gelu(far);
  y.sum().backward();
  EXPECT_TRUE(y.equal(at::gelu(far.detach(), "tanh"))) << y;
  EXPECT_TRUE(far.grad().isfinite().narrow(0, 1, 4).all().item<bool>()) << far.grad();
}

// The mask is a function of key, sample and element alone, so a batch cut in any way has the same zeros; and each
// kernel word is that of base/random.h.
TEST(Ops, DropoutDependsOnSampleAndElementAlone) {
  for (const auto type : kTypes) {
    for (const int64_t width : {1, 3, 64, 67, 40000}) {
      const at::Tensor x = at::ones({3, width}, type).requires_grad_();
      const Dropout whole{0.3, 5, at::tensor({7, 2, 1000000007}, at::kLong)};
      const at::Tensor y = dropout(x, whole, "place");
      y.sum().backward();
      EXPECT_TRUE(x.grad().equal(y.detach())) << "of ones the gradient is the mask";
      const at::Tensor again = at::ones({3, width}, type).requires_grad_(), dy = at::randn({3, width}).to(type);
      dropout(again, whole, "place").backward(dy);
      const double scale = 1 / (1 - whole.probability);
      const at::Tensor wide_dy = dy.to(at::kDouble), expected = at::where(y.ne(0), wide_dy * scale, 0.0);
      EXPECT_LE((again.grad().to(at::kDouble) - expected).abs().max().item<double>(), 8 * tolerance(type));
      for (int64_t row = 0; row < 3; ++row) {
        const Dropout one{0.3, 5, whole.samples.narrow(0, row, 1)};
        EXPECT_TRUE(dropout(x.detach().narrow(0, row, 1), one, "place").equal(y.detach().narrow(0, row, 1)));
      }
      const at::Tensor wide = y.detach().to(at::kDouble);
      const auto key = whole.key("place");
      for (const int64_t i : {int64_t{0}, width / 2, width - 1}) {
        const uint64_t number = uint64_t{1000000007} * static_cast<uint64_t>(width) + static_cast<uint64_t>(i);
        const bool kept = random::philox(key, number / 4)[number % 4] >= static_cast<uint32_t>(0.3 * 0x1p32);
        EXPECT_NEAR(wide[2][i].item<double>(), kept ? 1 / 0.7 : 0, tolerance(type)) << width << " " << i;
      }
    }
  }
  const at::Tensor x = at::ones({1, 200000});
  const auto masked = [&](int64_t sample, std::string_view place, uint64_t seed) {
    return dropout(x, {0.1, seed, at::full({1}, sample, at::kLong)}, place);
  };
  const at::Tensor y = masked(3, "a", 1);
  EXPECT_NEAR(y.eq(0).to(at::kDouble).mean().item<double>(), 0.1, 3e-3);
  EXPECT_NEAR(y.mean().item<double>(), 1, 3e-3);
  for (const at::Tensor& other : {masked(4, "a", 1), masked(3, "b", 1), masked(3, "a", 2)})
    EXPECT_NEAR(y.eq(other).to(at::kDouble).mean().item<double>(), 0.82, 5e-3) << "independent masks agree so often";
  EXPECT_TRUE(dropout(x, {0, 1, at::zeros({1}, at::kLong)}, "a").is_same(x));
  EXPECT_TRUE(dropout(x, {0.1, 1, {}}, "a").is_same(x)) << "without samples nothing is dropped: evaluation";
}

// Far below zero silu(g) is g exp(g), so the error of the exponential shows as it is, at each instruction set.
TEST(Ops, ExponentialIsRightInTheLastPlaces) {
  constexpr int64_t kCount = 200003;  // no multiple of any vector
  const at::Tensor gate = at::linspace(-86, 86, kCount, at::kFloat), up = at::ones({kCount}, at::kFloat);
  const at::Tensor y = swiglu(at::cat({gate, up}).unsqueeze(0)).squeeze(0).to(at::kDouble), g = gate.to(at::kDouble);
  const at::Tensor exact = g / (1 + (-g).exp());
  const at::Tensor error = ((y - exact) / exact).abs().masked_fill(g == 0, 0);
  EXPECT_LE(error.max().item<double>(), 2.5 * std::ldexp(1.0, -23));
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

TEST(Ops, LinearWithBiasAndWithItsInputMadeAgain) {
  at::manual_seed(14);
  for (const auto type : kTypes) {
    for (const auto shape : kShapes) {
      const std::string row = name(type, shape);
      const at::Tensor x = leaf({shape.rows, shape.cols}, type), w = at::randn({13, shape.cols}, type),
                       b = at::randn({13}, type), dy = at::randn({shape.rows, 13}, type);
      Sink sink(w), bias_sink(b), again_sink(w), again_bias(b);
      const at::Tensor y = linear(x, {w, &sink}, {b, &bias_sink});
      y.backward(dy);
      const at::Tensor x2 = twin(x), w2 = twin(w), b2 = twin(b);
      const at::Tensor y2 = at::mm(x2, w2.t()) + b2;
      y2.backward(dy.to(x2.scalar_type()));
      expect_close(y, y2, tolerance(type), row + " y");
      expect_close(x.grad(), x2.grad(), tolerance(type), row + " dx");
      expect_close(sink.buffer, w2.grad(), tolerance(type), row + " dw");
      expect_close(bias_sink.buffer, b2.grad(), tolerance(type), row + " db");
      int made = 0;
      const at::Tensor half = (x.detach() / 2).requires_grad_();
      linear(half * 2, {w, &again_sink}, {b, &again_bias}, [&, from = half.detach()] {
        ++made;
        EXPECT_FALSE(at::GradMode::is_enabled());
        return from * 2;
      }).backward(dy);
      EXPECT_EQ(made, 1) << row;
      EXPECT_TRUE(again_sink.buffer.equal(sink.buffer)) << row;
      EXPECT_TRUE(again_bias.buffer.equal(bias_sink.buffer)) << row;
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

// Into a bf16 table: of each token the rounded sum, however often it occurs; a running bf16 sum of ones stops at 256.
TEST(Ops, EmbeddingGradientInBf16IsRoundedOnce) {
  for (const int64_t hidden : {1, 17, 64}) {
    at::manual_seed(3);
    const at::Tensor table = leaf({11, hidden}, at::kBFloat16);
    const at::Tensor tokens = at::cat({at::randint(0, 10, {500}, at::kLong), at::full({1500}, 4, at::kLong)});
    const at::Tensor dy = at::cat({at::randn({500, hidden}), at::ones({1500, hidden})}).to(at::kBFloat16);
    const at::Tensor anchor = at::zeros({}, at::kBFloat16).requires_grad_();
    Sink sink(table, at::kBFloat16);
    embedding(tokens, {table.detach(), &sink}, anchor).backward(dy);
    const at::Tensor sums = at::zeros({11, hidden}).index_add_(0, tokens, dy.to(at::kFloat));
    EXPECT_TRUE(sink.buffer.equal(sums.to(at::kBFloat16))) << hidden;
    EXPECT_GT(sink.buffer[4].to(at::kFloat).min().item<float>(), 1300);
    // A second micro-batch is added to what is there.
    embedding(tokens, {table.detach(), &sink}, anchor).backward(dy);
    const at::Tensor twice = (sums.to(at::kBFloat16).to(at::kFloat) + sums).to(at::kBFloat16);
    expect_close(sink.buffer, twice, 1.0 / 256, "a second micro-batch");
    EXPECT_EQ(sink.contributions, 2);
  }
}

TEST(Ops, LinearGradientsInBf16AreRoundedOnce) {
  at::manual_seed(4);
  for (const auto& [tokens, in, out] : {std::tuple(1, 1, 1), std::tuple(130, 31, 17), std::tuple(512, 64, 96)}) {
    const at::Tensor x = leaf({tokens, in}, at::kBFloat16), weight = at::randn({out, in}, at::kBFloat16),
                     bias = at::randn({out}, at::kBFloat16), dy = at::randn({tokens, out}, at::kBFloat16);
    Sink sink(weight, at::kBFloat16), bias_sink(bias, at::kBFloat16);
    const at::Tensor dw = dy.to(at::kDouble).t().mm(x.detach().to(at::kDouble)), db = dy.to(at::kDouble).sum(0);
    for (const double times : {1.0, 2.0}) {
      linear(x, {weight, &sink}, {bias, &bias_sink}).backward(dy);
      const std::string what = fmt::format("{} x {} x {}, {}", tokens, in, out, times);
      expect_close(sink.buffer, dw * times, times / 256, what);
      expect_close(bias_sink.buffer, db * times, times / 256, what + ", bias");
    }
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

TEST(Ops, AdamwOfGradientsInBf16IsThatOfTheSameInFp32) {
  at::manual_seed(5);
  for (const int64_t count : {1, 33, 70001}) {
    const at::Tensor gradient = at::randn({count}).to(at::kBFloat16);
    std::vector<at::Tensor> states[2];
    for (auto& state : states) {
      at::manual_seed(6);
      state = {at::randn({count}), at::randn({count}), at::rand({count}), at::empty({count}, at::kBFloat16)};
      const bool wide = &state == states;
      adamw(state[0], state[1], state[2], wide ? gradient.to(at::kFloat) : gradient, state[3],
            {1e-2, 0.9, 0.95, 1e-8, 0.1, 3, 0.5});
    }
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(states[0][i].equal(states[1][i])) << count << " " << i;
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
      {"layer_norm",
       [&](at::ScalarType type) {
         const at::Tensor x = leaf({1000, 96}, type), w = at::randn({96}, type), b = at::randn({96}, type);
         Sink sink(w), bias_sink(b);
         const at::Tensor y = layer_norm(x, {w, &sink}, {b, &bias_sink}, 1e-5);
         y.backward(at::randn_like(y));
         return flat({y, x.grad(), sink.buffer, bias_sink.buffer});
       }},
      {"qk_norm",
       [&](at::ScalarType type) {
         const at::Tensor x = leaf({1000, 96}, type), q = at::randn({16}, type), k = at::randn({16}, type);
         Sink q_sink(q), k_sink(k);
         const at::Tensor y = qk_norm(x, 4, 1, {q, &q_sink}, {k, &k_sink}, 1e-5);
         y.backward(at::randn_like(y));
         return flat({y, x.grad(), q_sink.buffer, k_sink.buffer});
       }},
      {"bias",
       [&](at::ScalarType type) {
         const at::Tensor x = leaf({1000, 8}, type), w = at::randn({96, 8}, type), b = at::randn({96}, type);
         Sink bias_sink(b);
         const at::Tensor y = linear(x, {w, nullptr}, {b, &bias_sink});
         y.backward(at::randn_like(y));
         return flat({bias_sink.buffer});
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
       [&](at::ScalarType type) { return at::full({1}, sum_of_squares(at::randn({1000003}, type)), at::kDouble); }},
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
