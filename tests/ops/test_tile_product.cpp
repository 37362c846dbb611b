// Products on tile registers, beside those of fp64; and that what oneDNN configured before is there again.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ops/dispatch.h"
#include "ops/tile_product.h"

namespace trireme::ops {
namespace {

at::Tensor in_pairs(const at::Tensor& b) { return b.view({b.size(0) / 2, 2, b.size(1)}).transpose(1, 2).contiguous(); }

TEST(TileProducts, AreThoseOfDouble) {
  if (!have_tile_products()) GTEST_SKIP() << "this CPU has no tile registers";
  for (const int64_t m : {32, 64, 96, 256})
    for (const int64_t n : {32, 64, 96, 256})
      for (const int64_t k : {32, 64, 96, 256}) {
        SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, k));
        const at::Tensor a = at::randn({m, k}).to(at::kBFloat16), b = at::randn({k, n}).to(at::kBFloat16);
        const at::Tensor pairs = in_pairs(b), start = at::randn({m, n});
        at::Tensor written = at::full({m, n}, std::nan("")), added = start.clone();
        {
          const TileProducts products;
          products.multiply(m, n, k, data<Bf16>(a), data<Bf16>(pairs), data<float>(written), false);
          products.multiply(m, n, k, data<Bf16>(a), data<Bf16>(pairs), data<float>(added), true);
        }
        const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
        const at::Tensor size = at::mm(a.to(at::kDouble).abs(), b.to(at::kDouble).abs());  // of what is summed
        EXPECT_LE(((written - expected).abs() / size).max().item<double>(), 1e-6);
        EXPECT_LE(((added - start - expected).abs() / (size + start.abs())).max().item<double>(), 1e-6);
      }
}

TEST(TileProducts, LeaveOneDnnsConfigurationAsItWas) {
  if (!have_tile_products()) GTEST_SKIP() << "this CPU has no tile registers";
  const at::Tensor x = at::randn({512, 384}).to(at::kBFloat16), y = at::randn({384, 512}).to(at::kBFloat16);
  const at::Tensor small = at::randn({64, 64}).to(at::kBFloat16), pairs = in_pairs(small);
  const at::Tensor expected = at::mm(x, y);
  at::Tensor out = at::empty({64, 64});
  for (int i = 0; i < 20; ++i) {
    at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
      const at::Tensor mine = at::empty({64, 64});
      const TileProducts products;
      products.multiply(64, 64, 64, data<Bf16>(small), data<Bf16>(pairs), data<float>(mine), false);
    });
    EXPECT_TRUE(at::equal(at::mm(x, y), expected));
  }
}

}  // namespace
}  // namespace trireme::ops
