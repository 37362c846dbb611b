// Attention in tiles beside ATen's flash kernel, both in bf16, by how far each is from fp64. Catches: weights or
// gradients that are rounded once too often, a tile that is left out or taken twice, padding that leaks, a NaN that
// softmax swallows, sums that depend on the number of threads.
#include "ops/attention_tiles.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace trireme::ops {
namespace {

struct Row {
  int64_t batch, seq, heads, kv_heads, head_dim, window;
};

std::string name(const Row& r) {
  return "seq " + std::to_string(r.seq) + " heads " + std::to_string(r.heads) + "/" + std::to_string(r.kv_heads) +
         " x " + std::to_string(r.head_dim) + " window " + std::to_string(r.window);
}

struct Result {
  at::Tensor out, dqkv;
};

at::Tensor heads_of(const at::Tensor& qkv, const Row& r, int64_t first, int64_t count) {
  const at::Tensor x = qkv.view({r.batch, r.seq, -1, r.head_dim}).narrow(2, first, count).transpose(1, 2);
  return count == r.heads
             ? x
             : x.unsqueeze(2).expand({-1, -1, r.heads / count, -1, -1}).reshape({r.batch, r.heads, r.seq, r.head_dim});
}

// By autograd: through ATen's kernel, or written out in fp64.
Result by_autograd(const at::Tensor& input, const at::Tensor& dout, const Row& r, bool exact) {
  const at::Tensor qkv = input.to(exact ? at::kDouble : at::kBFloat16).detach().clone().requires_grad_();
  const at::Tensor q = heads_of(qkv, r, 0, r.heads), k = heads_of(qkv, r, r.heads, r.kv_heads),
                   v = heads_of(qkv, r, r.heads + r.kv_heads, r.kv_heads);
  at::Tensor seen = at::ones({r.seq, r.seq}, at::kBool).tril();
  if (r.window > 0) seen = seen.triu(1 - r.window);
  at::Tensor out;
  if (exact) {
    const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(r.head_dim));
    out = at::matmul(scores.masked_fill(seen.logical_not(), -INFINITY).softmax(-1), v);
  } else {
    const at::Tensor added = at::zeros({r.seq, r.seq}, qkv.options()).masked_fill_(seen.logical_not(), -INFINITY);
    out = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, false, added));
  }
  out = out.transpose(1, 2).reshape({r.batch, r.seq, -1});
  torch::autograd::backward({out}, {dout.to(out.scalar_type())});
  return {out.detach(), qkv.grad()};
}

Result by_tiles(const at::Tensor& qkv, const at::Tensor& dout, const Row& r) {
  const AttentionShape shape{r.heads, r.kv_heads, r.head_dim};
  const std::vector<Piece> pieces = {{0, r.batch, 0, r.seq}};
  const at::Tensor logsumexp = at::full({r.batch, r.heads, r.seq}, NAN);
  const Result result{at::full_like(dout, NAN), at::full_like(qkv, NAN)};
  attention_tiles(qkv, shape, pieces, r.window, result.out, logsumexp);
  attention_tiles_backward(dout, qkv, shape, pieces, r.window, result.out, logsumexp, result.dqkv);
  return result;
}

double error(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

class AttentionTiles : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(21);
    if (!tiles_apply(at::zeros({1, 1, 24}, at::kBFloat16), {1, 1, 8}))
      GTEST_SKIP() << "this processor has no bf16 products of small tiles";
  }
  static at::Tensor inputs(const Row& r) {
    return at::randn({r.batch, r.seq, (r.heads + 2 * r.kv_heads) * r.head_dim}).to(at::kBFloat16);
  }
  static at::Tensor gradients(const Row& r) {
    return at::randn({r.batch, r.seq, r.heads * r.head_dim}).to(at::kBFloat16);
  }
};

TEST_F(AttentionTiles, AreAtLeastAsExactAsTheFlashKernel) {
  for (const Row r :
       {Row{2, 64, 2, 2, 64, 0}, Row{1, 65, 2, 1, 32, 0}, Row{2, 200, 4, 2, 64, 0}, Row{1, 257, 6, 1, 80, 0},
        Row{1, 130, 2, 2, 128, 0}, Row{1, 129, 3, 3, 7, 0}, Row{1, 300, 2, 1, 64, 1}, Row{1, 300, 2, 1, 64, 64},
        Row{1, 300, 2, 1, 64, 65}, Row{1, 300, 2, 2, 48, 100}, Row{1, 192, 1, 1, 256, 0}}) {
    SCOPED_TRACE(name(r));
    const at::Tensor qkv = inputs(r), dout = gradients(r);
    const Result exact = by_autograd(qkv, dout, r, true), flash = by_autograd(qkv, dout, r, false),
                 tiles = by_tiles(qkv, dout, r);
    EXPECT_LE(error(tiles.out, exact.out), 1.1 * error(flash.out, exact.out));
    const int64_t parts[][2] = {{0, r.heads}, {r.heads, r.kv_heads}, {r.heads + r.kv_heads, r.kv_heads}};
    for (const auto& part : parts) {
      const auto of = [&](const at::Tensor& dqkv) {
        return dqkv.view({r.batch, r.seq, -1, r.head_dim}).narrow(2, part[0], part[1]);
      };
      if (of(exact.dqkv).abs().max().item<double>() < 1e-12) {  // a window of one: weights are 1, whatever the keys
        EXPECT_LE(of(tiles.dqkv).abs().max().item<double>(), 1e-2);
        continue;
      }
      EXPECT_LE(error(of(tiles.dqkv), of(exact.dqkv)), 1.1 * error(of(flash.dqkv), of(exact.dqkv)))
          << "from head " << part[0];
    }
  }
}

TEST_F(AttentionTiles, KeepScoresOfAnySizeFinite) {
  const Row r{1, 150, 2, 2, 64, 0};
  const Result tiles = by_tiles(inputs(r) * 300, gradients(r), r);
  EXPECT_TRUE(tiles.out.isfinite().all().item<bool>());
  EXPECT_TRUE(tiles.dqkv.isfinite().all().item<bool>());
}

TEST_F(AttentionTiles, PassOnWhatIsNoNumber) {
  const Row r{1, 150, 1, 1, 32, 0};
  for (const int64_t head : {0, 1, 2}) {  // a query, a key, a value
    SCOPED_TRACE(head);
    const at::Tensor qkv = inputs(r);
    qkv.view({150, 3, 32})[100][head][5] = NAN;
    EXPECT_TRUE(by_tiles(qkv, gradients(r), r).out[0][100].isnan().any().item<bool>());
  }
}

TEST_F(AttentionTiles, DoNotDependOnTheNumberOfThreads) {
  const Row r{3, 200, 4, 2, 64, 0};
  const at::Tensor qkv = inputs(r), dout = gradients(r);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Result one = by_tiles(qkv, dout, r);
  at::set_num_threads(3);
  const Result three = by_tiles(qkv, dout, r);
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(one.out, three.out));
  EXPECT_TRUE(at::equal(one.dqkv, three.dqkv));
}

}  // namespace
}  // namespace trireme::ops
