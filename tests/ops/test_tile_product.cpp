// Products on tile registers, beside those of fp64; and that what ATen configured before is there again.
#include <ATen/ATen.h>
#include <ATen/native/CPUBlas.h>
#include <fmt/format.h>
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

// Within a thread, ATen configures the registers only when a product differs from the one before; here it makes the
// same one again after ours.
TEST(TileProducts, LeaveWhatAtenConfiguredAsItWas) {
  if (!have_tile_products()) GTEST_SKIP() << "this CPU has no tile registers";
  constexpr int64_t m = 24, n = 48, k = 32;  // other tiles than ours
  const at::Tensor x = at::randn({m, k}).to(at::kBFloat16), y = at::randn({k, n}).to(at::kBFloat16);
  const at::Tensor a = at::randn({64, 64}).to(at::kBFloat16), b = at::randn({64, 64}).to(at::kBFloat16);
  const at::Tensor pairs = in_pairs(y), b_pairs = in_pairs(b), expected = at::mm(x.to(at::kFloat), y.to(at::kFloat));
  const auto product = [&] {
    const at::Tensor out = at::full({m, n}, std::nan(""));
    at::native::cpublas::brgemm(m, n, k, k, n, n, false, x.const_data_ptr<at::BFloat16>(),
                                pairs.const_data_ptr<at::BFloat16>(), out.data_ptr<float>());
    return out;
  };
  EXPECT_TRUE(at::allclose(product(), expected, 1e-5, 1e-5));
  const at::Tensor ours = at::full({64, 64}, std::nan(""));
  {
    const TileProducts products;
    products.multiply(64, 64, 64, data<Bf16>(a), data<Bf16>(b_pairs), data<float>(ours), false);
  }
  EXPECT_TRUE(at::allclose(ours, at::mm(a.to(at::kFloat), b.to(at::kFloat)), 1e-5, 1e-4));
  EXPECT_TRUE(at::allclose(product(), expected, 1e-5, 1e-5));
  at::native::cpublas::brgemm_release();
}

}  // namespace
}  // namespace trireme::ops
