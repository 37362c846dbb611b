// add_product against a product in fp64. Catches: a bf16 product that is rounded to bf16 on its way into fp32, a
// transposed operand or a stride that is mistaken, an overwrite that adds to what was there (the buffer holds NaN),
// shapes without elements.
#include "ops/matmul.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::ops {
namespace {

struct Shape {
  int64_t m, k, n;
};
constexpr Shape kShapes[] = {{1, 1, 1},    {0, 4, 3},      {3, 4, 0},     {5, 0, 3},     {7, 31, 13},
                             {1, 513, 64}, {64, 2048, 33}, {257, 100, 1}, {100, 700, 90}};

struct Types {
  at::ScalarType in, out;
  double tolerance;  ///< of the largest number of the product
};
constexpr Types kTypes[] = {{at::kDouble, at::kDouble, 1e-13},
                            {at::kFloat, at::kFloat, 3e-6},
                            {at::kBFloat16, at::kFloat, 3e-6},
                            {at::kBFloat16, at::kBFloat16, 8e-3},
                            {at::kHalf, at::kFloat, 2e-3}};

// [rows, cols] as a view: by rows, transposed, or with a column left over in each row.
at::Tensor operand(int64_t rows, int64_t cols, int how, at::ScalarType type) {
  if (how == 0) return at::randn({rows, cols}).to(type);
  if (how == 1) return at::randn({cols, rows}).to(type).t();
  return at::randn({rows, cols + 3}).to(type).narrow(1, 0, cols);
}

TEST(Matmul, AddsTheExactProduct) {
  at::manual_seed(1);
  for (const Types& types : kTypes) {
    for (const Shape& shape : kShapes) {
      for (int how = 0; how < 9; ++how) {
        SCOPED_TRACE(std::string(c10::toString(types.in)) + " " + std::to_string(shape.m) + "x" +
                     std::to_string(shape.k) + "x" + std::to_string(shape.n) + " views " + std::to_string(how));
        const at::Tensor a = operand(shape.m, shape.k, how % 3, types.in),
                         b = operand(shape.k, shape.n, how / 3, types.in);
        const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
        const double scale = exact.numel() == 0 ? 0 : exact.abs().max().item<double>();
        const at::Tensor written = at::full({shape.m, shape.n}, NAN, types.out);
        add_product(written, a, b, false);
        const at::Tensor added = at::ones({shape.m, shape.n}, types.out);
        add_product(added, a, b, true);
        if (exact.numel() == 0) continue;
        EXPECT_LE((written.to(at::kDouble) - exact).abs().max().item<double>(), types.tolerance * scale);
        EXPECT_LE((added.to(at::kDouble) - exact - 1).abs().max().item<double>(), types.tolerance * (scale + 1));
      }
    }
  }
}

// A bias that lies anyhow, products on both sides of what our own kernel takes, rows of a wider result.
TEST(Matmul, ProductsAreRoundedOnce) {
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  for (const Shape& shape : {Shape{1, 512, 640}, Shape{31, 256, 256}, Shape{32, 256, 256}, Shape{64, 32, 32}}) {
    for (int how = 0; how < 9; ++how) {
      SCOPED_TRACE(std::to_string(shape.m) + " views " + std::to_string(how));
      const auto whole = [](const at::Tensor& x) { return x.mul(2).round(); };  // sums are exact
      const at::Tensor a = operand(shape.m, shape.k, how % 3, at::kBFloat16),
                       b = operand(shape.k, shape.n, how / 3, at::kBFloat16);
      a.copy_(whole(a));
      b.copy_(whole(b));
      const at::Tensor exact = at::mm(a.to(at::kFloat), b.to(at::kFloat)),
                       wide_bias = at::arange(2 * shape.n).to(at::kBFloat16);
      EXPECT_TRUE(product(a, b).equal(exact.to(at::kBFloat16)));
      for (const at::Tensor& bias : {wide_bias.narrow(0, 3, shape.n), wide_bias.slice(0, 0, 2 * shape.n, 2)})
        EXPECT_TRUE(product(a, b, bias).equal((exact + bias).to(at::kBFloat16)));
      const at::Tensor frame = at::full({shape.m, shape.n + 4}, 7, at::kBFloat16);
      product_into(frame.narrow(1, 2, shape.n), a, b);
      EXPECT_TRUE(frame.narrow(1, 2, shape.n).equal(exact.to(at::kBFloat16)));
      EXPECT_TRUE(frame.narrow(1, 0, 2).eq(7).all().item<bool>() &&
                  frame.narrow(1, shape.n + 2, 2).eq(7).all().item<bool>());
    }
  }
}

TEST(Matmul, RefusesWhatAutogradWouldMiss) {
  const at::Tensor a = at::ones({2, 2}).requires_grad_();
  EXPECT_THROW(product(a, at::ones({2, 2})), InternalError);
  EXPECT_THROW(product_into(at::ones({2, 2}), at::ones({2, 2}), a), InternalError);
}

TEST(Matmul, RefusesShapesThatDoNotFit) {
  const at::Tensor out = at::zeros({2, 3});
  EXPECT_THROW(add_product(out, at::zeros({2, 4}), at::zeros({5, 3}), false), InternalError);
  EXPECT_THROW(add_product(out, at::zeros({3, 4}), at::zeros({4, 3}), false), InternalError);
  EXPECT_THROW(add_product(at::zeros({3, 2}).t(), at::zeros({2, 4}), at::zeros({4, 3}), false), InternalError);
}

}  // namespace
}  // namespace trireme::ops
