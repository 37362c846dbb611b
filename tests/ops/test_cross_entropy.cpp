// The output projection with its loss against the plain reference: loss, its terms, every gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "ops/linear_cross_entropy.h"
#include "support.h"

namespace trireme::ops {
namespace {

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
      const struct { double z_loss, cap; } terms[] = {{0, 0}, {0.002, 0}, {0, 3}, {0.002, 30}};
      for (const auto& [z_loss, cap] : terms) {
        h.mutable_grad() = at::Tensor();
        Sink sink(w);
        // fp16 ends at 65,504, and the weight's gradient is a product in it; what a cap makes flat ends at the other
        // end.
        const double scale = type != at::kHalf ? 0.75 : cap > 0 ? 0.05 : 0.0025;
        double z_part = -1;
        const at::Tensor loss = linear_cross_entropy(h, {w, &sink}, labels, scale, z_loss, &z_part, cap);
        loss.backward();
        const at::Tensor h2 = twin(h), w2 = twin(w);
        const at::Tensor loss2 = reference::linear_cross_entropy(h2, w2, labels, scale, z_loss, cap);
        loss2.backward();
        const std::string row = std::string(c10::toString(type)) + " vocab " + std::to_string(r.vocab) + " " +
                                r.labels + " z " + std::to_string(z_loss) + " cap " + std::to_string(cap);
        expect_close(loss, loss2, tolerance(type), row + " loss");
        expect_close(h.grad(), h2.grad(), tolerance(type), row + " dhidden");
        expect_close(sink.buffer, w2.grad(), tolerance(type), row + " dw");
        const at::Tensor each = token_losses(h.detach(), w, labels, cap);
        expect_close(each.to(at::kDouble).sum() * scale + z_part, loss2, tolerance(type), row + " token losses");
        EXPECT_EQ(z_part > 0, z_loss > 0 && r.labels != std::string("none")) << row;
      }
    }
  }
}

// The weight's gradient is made in the forward pass, so a factor that comes later would be missing from it.
// In bf16 it is rounded once, however many chunks the logits come in: equal terms that were added one chunk after
// another would stop growing.
TEST(Ops, LinearCrossEntropyInBf16RoundsItsGradientOnce) {
  constexpr int64_t kTokens = 4096, kHidden = 3, kVocab = 100'003;  // 13 chunks
  at::manual_seed(6);
  const at::Tensor
      h = (at::ones({kTokens, kHidden}) + 0.01 * at::randn({kTokens, kHidden})).to(at::kBFloat16).requires_grad_(),
      w = 0.01 * at::randn({kVocab, kHidden}).to(at::kBFloat16);
  const at::Tensor labels = at::randint(0, 5, {kTokens}, at::kLong);
  Sink wide(w), narrow(w, at::kBFloat16);
  for (const int64_t times : {1, 2}) {
    for (Sink* sink : {&wide, &narrow})
      linear_cross_entropy(h, {w.detach(), sink}, labels, 1.0, 0, nullptr, 0).backward();
    const at::Tensor a = wide.buffer.to(at::kDouble), b = narrow.buffer.to(at::kDouble);
    EXPECT_LE(((a - b).abs() / (a.abs() + 1e-3)).max().item<double>(), static_cast<double>(times) / 256) << times;
  }
}

TEST(Ops, LinearCrossEntropyRefusesAFactorThatComesLate) {
  const at::Tensor h = leaf({5, 8}, at::kFloat), w = at::randn({17, 8}), labels = at::zeros({5}, at::kLong);
  Sink sink(w);
  EXPECT_THROW((linear_cross_entropy(h, {w, &sink}, labels, 1.0) * 2).backward(), std::exception);
  h.mutable_grad() = at::Tensor();
  (linear_cross_entropy(h, {w, nullptr}, labels, 0.5) * 2).backward();
  const at::Tensor doubled = h.grad().clone();
  h.mutable_grad() = at::Tensor();
  linear_cross_entropy(h, {w, nullptr}, labels, 1.0).backward();
  expect_close(h.grad(), doubled, 1e-6, "dhidden");
}

// Two losses of one weight, forward passes before backward passes: the second adds to the first.
TEST(Ops, LinearCrossEntropyAddsUpOverForwardPasses) {
  const at::Tensor w = at::randn({17, 8}, at::kDouble), labels = at::zeros({5}, at::kLong);
  const at::Tensor a = leaf({5, 8}, at::kDouble), b = leaf({5, 8}, at::kDouble), w2 = twin(w);
  Sink sink(w);
  const at::Tensor first = linear_cross_entropy(a, {w, &sink}, labels, 1.0),
                   second = linear_cross_entropy(b, {w, &sink}, labels, 1.0);
  first.backward();
  second.backward();
  (reference::linear_cross_entropy(twin(a), w2, labels, 1.0) +
   reference::linear_cross_entropy(twin(b), w2, labels, 1.0))
      .backward();
  EXPECT_EQ(sink.contributions, 2);
  expect_close(sink.buffer, w2.grad(), 1e-12, "dw");
}

// By finite differences, which know nothing of the reference.
TEST(Ops, LinearCrossEntropyGradientsByDifferences) {
  at::manual_seed(11);
  const at::Tensor h = leaf({7, 5}, at::kDouble), w = at::randn({13, 5}, at::kDouble);
  const at::Tensor labels = at::randint(0, 13, {7}, at::kLong);
  labels[3] = kIgnoredLabel;
  for (const double cap : {0.0, 1.5}) {
    const auto value = [&](const at::Tensor& hidden, const at::Tensor& weight) {
      const at::NoGradGuard no_grad;
      return linear_cross_entropy(hidden, {weight, nullptr}, labels, 0.5, 0.01, nullptr, cap).item<double>();
    };
    h.mutable_grad() = at::Tensor();
    Sink sink(w);
    linear_cross_entropy(h, {w, &sink}, labels, 0.5, 0.01, nullptr, cap).backward();
    const double step = 1e-6;
    const auto check = [&](const at::Tensor& x, const at::Tensor& gradient, auto with) {
      for (int64_t i = 0; i < x.numel(); ++i) {
        at::Tensor up = x.detach().clone(), down = x.detach().clone();
        up.view({-1})[i] += step;
        down.view({-1})[i] -= step;
        const double slope = (with(up) - with(down)) / (2 * step);
        EXPECT_NEAR(gradient.reshape({-1})[i].item<double>(), slope, 1e-8) << i << " cap " << cap;
      }
    };
    check(h, h.grad(), [&](const at::Tensor& x) { return value(x, w); });
    check(w, sink.buffer, [&](const at::Tensor& x) { return value(h.detach(), x); });
  }
}

TEST(Ops, LinearCrossEntropyShowsANan) {
  for (const auto type : kTypes) {
    at::Tensor h = at::randn({4, 8}, type);
    h[1][2] = NAN;
    const at::Tensor labels = at::zeros({4}, at::kLong);
    for (const double cap : {0.0, 5.0}) {
      const at::Tensor loss =
          linear_cross_entropy(h, {at::randn({33, 8}, type), nullptr}, labels, 1.0, 0, nullptr, cap);
      EXPECT_TRUE(std::isnan(loss.item<double>())) << cap;
    }
  }
}

}  // namespace
}  // namespace trireme::ops
