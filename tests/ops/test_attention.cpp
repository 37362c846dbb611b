// Causal attention against its plain reference, over masks, and with a cache.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "ops/attention.h"
#include "ops/dropout.h"
#include "support.h"

namespace trireme::ops {
namespace {

TEST(Ops, CausalAttentionMatchesReference) {
  at::manual_seed(6);
  struct Row {
    int64_t batch, seq, heads, kv_heads, head_dim;
  };
  for (const Row r :
       {Row{1, 1, 1, 1, 2}, Row{2, 5, 4, 2, 6}, Row{1, 33, 6, 1, 16}, Row{3, 64, 4, 4, 32}, Row{2, 130, 6, 3, 48}}) {
    for (const auto type : kTypes) {
      const AttentionShape shape{r.heads, r.kv_heads, r.head_dim};
      const RotaryTable table = make_rotary_table(r.seq, r.head_dim, 10000, {}, compute_type(type), at::kCPU);
      const at::Tensor positions = at::arange(r.seq, at::kLong).repeat({r.batch});
      const at::Tensor x = leaf({r.batch, r.seq, (r.heads + 2 * r.kv_heads) * r.head_dim}, type);
      const at::Tensor x2 = twin(x);
      const at::Tensor y = causal_attention(x.clone(), shape, table, positions), dy = at::randn_like(y);
      y.backward(dy);
      const RotaryTable table2 = make_rotary_table(r.seq, r.head_dim, 10000, {}, x2.scalar_type(), at::kCPU);
      const at::Tensor y2 = reference::causal_attention(x2, shape, table2, positions);
      y2.backward(dy.to(x2.scalar_type()));
      const std::string row = std::string(c10::toString(type)) + " seq " + std::to_string(r.seq);
      expect_close(y, y2, tolerance(type), row + " y");
      expect_close(x.grad(), x2.grad(), 2 * tolerance(type), row + " dx");
    }
  }
}

// Windows and documents: the pieces that the flash kernel gets against one written-out mask, with and without rotation.
TEST(Ops, MaskedAttentionMatchesReference) {
  at::manual_seed(15);
  using Segments = std::vector<Segment>;
  struct Row {
    const char* name;
    int64_t batch, seq, window;
    Segments segments;
  };
  const Row rows[] = {{"window of one", 2, 9, 1, {}},
                      {"window", 2, 130, 17, {}},
                      {"window of the sequence", 1, 33, 33, {}},
                      {"one document a row", 2, 5, 0, {{0, 0, 5}, {1, 0, 5}}},
                      {"documents", 2, 70, 0, {{0, 0, 1}, {0, 1, 40}, {0, 41, 29}, {1, 0, 69}, {1, 69, 1}}},
                      {"single row of documents", 1, 70, 0, {{0, 0, 35}, {0, 35, 35}}},
                      {"documents and window", 2, 70, 8, {{0, 0, 3}, {0, 3, 67}, {1, 0, 70}}}};
  for (const Row& r : rows) {
    for (const auto type : kTypes) {
      for (const bool turned : {true, false}) {
        const AttentionShape shape{4, 2, 16};
        AttentionMask mask{r.window, {}, std::make_shared<at::Tensor>()};
        if (!r.segments.empty()) mask.segments = std::make_shared<const Segments>(r.segments);
        const at::Tensor positions = at::arange(r.seq, at::kLong).repeat({r.batch});
        const auto table = [&](at::ScalarType t) {
          return turned ? make_rotary_table(r.seq, 16, 10000, {}, compute_type(t), at::kCPU) : RotaryTable{};
        };
        const at::Tensor x = leaf({r.batch, r.seq, 8 * 16}, type), x2 = twin(x);
        const at::Tensor y = causal_attention(x.clone(), shape, table(type), positions, mask), dy = at::randn_like(y);
        y.backward(dy);
        const at::Tensor y2 = reference::causal_attention(x2, shape, table(x2.scalar_type()), positions, mask);
        y2.backward(dy.to(x2.scalar_type()));
        const std::string row = std::string(r.name) + " " + c10::toString(type);
        expect_close(y, y2, tolerance(type), row + " y");
        expect_close(x.grad(), x2.grad(), 2 * tolerance(type), row + " dx");
      }
    }
  }
}

// What the reference's mask means, told without it: a document of its own, and a window that forgets.
TEST(Ops, DocumentsAndWindowsHideWhatTheySay) {
  at::manual_seed(16);
  const AttentionShape shape{2, 1, 8};
  const at::Tensor x = at::randn({1, 12, 4 * 8}, at::kDouble), positions = at::arange(12, at::kLong);
  const auto run = [&](const at::Tensor& input, const AttentionMask& mask) {
    return causal_attention(input.clone(), shape, {}, positions.narrow(0, 0, input.size(1)), mask);
  };
  AttentionMask documents;
  documents.segments = std::make_shared<const std::vector<Segment>>(std::vector<Segment>{{0, 0, 5}, {0, 5, 7}});
  expect_close(run(x, documents).narrow(1, 5, 7), run(x.narrow(1, 5, 7), {}), 1e-14, "the second document alone");
  const at::Tensor last = run(x, {4, {}, {}}).narrow(1, 11, 1);
  expect_close(last, run(x.narrow(1, 8, 4), {}).narrow(1, 3, 1), 1e-14, "the last four tokens alone");
}

// With dropout the result is that of the written-out weights times the mask of the same name; its mean is the result
// without.
TEST(Ops, AttentionDropsWeights) {
  at::manual_seed(17);
  const AttentionShape shape{2, 2, 4};
  const at::Tensor x = at::randn({1, 6, 24}, at::kDouble), positions = at::arange(6, at::kLong);
  const at::Tensor plain = causal_attention(x.clone(), shape, {}, positions);
  at::Tensor sum = at::zeros_like(plain);
  constexpr int kTimes = 4000;
  for (int64_t sample = 0; sample < kTimes; ++sample)
    sum += causal_attention(x, shape, {}, positions, {}, {0.25, 1, at::full({1}, sample, at::kLong)}, "a");
  EXPECT_LE((sum / kTimes - plain).abs().max().item<double>(), 0.06);
  const Dropout dropped{0.25, 1, at::zeros({1}, at::kLong)};
  EXPECT_FALSE(causal_attention(x, shape, {}, positions, {}, dropped, "a").equal(plain));
}

// Scores beyond fp16's 65,504 before they are scaled, and the written-out way as the flash kernel.
TEST(Ops, LargeScoresInHalfAreFinite) {
  const AttentionShape shape{1, 1, 128};
  const at::Tensor x = at::full({1, 3, 3 * 128}, 24, at::kHalf), positions = at::arange(3, at::kLong);
  const at::Tensor written = reference::causal_attention(x, shape, {}, positions);
  EXPECT_TRUE(written.equal(at::full_like(written, 24))) << written;
  EXPECT_TRUE(causal_attention(x.clone(), shape, {}, positions).equal(written));
}

TEST(Ops, CachedAttentionEqualsWholeSequence) {
  for (const int64_t window : {0, 1, 5, 30}) {
    at::manual_seed(7);
    const AttentionShape shape{4, 2, 8};
    const int64_t seq = 19;
    const RotaryTable table = make_rotary_table(seq, 8, 10000, {}, at::kDouble, at::kCPU);
    const at::Tensor x = at::randn({1, seq, 64}, at::kDouble), positions = at::arange(seq, at::kLong);
    const at::Tensor whole = reference::causal_attention(x, shape, table, positions, {window, {}, {}});
    KeyValueCache cache{at::zeros({1, 2, seq, 8}, at::kDouble), at::zeros({1, 2, seq, 8}, at::kDouble), 0};
    std::vector<at::Tensor> parts;
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 7}, {7, 1}, {8, 4}, {12, 7}})
      parts.push_back(
          cached_attention(x.narrow(1, first, count), shape, table, positions.narrow(0, first, count), cache, window));
    expect_close(at::cat(parts, 1), whole, 1e-12, "cached, window " + std::to_string(window));
  }
}

}  // namespace
}  // namespace trireme::ops
