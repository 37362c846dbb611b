// Parameters: names, fragments, counting of gradients, and initial values that no layout changes; recomputation.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "nn/parameter.h"
#include "nn/recompute.h"
#include "ops/linear.h"

namespace trireme::nn {
namespace {

LogicalTensor matrix(const std::string& name, int64_t rows, int64_t cols) {
  return {name, {rows, cols}, {Init::Kind::truncated_normal, 0.02}, true};
}

void give_memory(Parameter& parameter) {
  const at::Tensor weight = at::zeros(parameter.shape(), parameter.dtype());
  parameter.bind(weight, weight, at::zeros_like(weight));
}

// Made once by a program of its own in Python: Philox4x32-10 written out, the key from the xxhash package, the inverse
// of the normal distribution from the statistics module.
TEST(Initialize, GoldenValues) {
  struct Row {
    uint64_t seed;
    const char* name;
    int64_t element;
    double value;
  };
  const Row rows[] = {{0, "embed.weight", 0, -0.008076445971521842},
                      {0, "embed.weight", 1, 0.002803613251446912},
                      {1, "embed.weight", 0, 0.029076702665581915},
                      {1, "blocks.3.attention.k.weight", 12345, -0.0028593428909465916},
                      {42, "head.weight", (int64_t{1} << 33) + 7, 0.019219473015051572}};
  for (const Row& row : rows) {
    const at::Tensor value = at::empty({1}, at::kDouble);
    initialize(matrix(row.name, 1 << 20, 1 << 20), row.element, value, row.seed);
    EXPECT_NEAR(value.item<double>(), row.value, 1e-15) << row.name << " " << row.element;
    const at::Tensor single = at::empty({1}, at::kFloat);
    initialize(matrix(row.name, 1 << 20, 1 << 20), row.element, single, row.seed);
    EXPECT_EQ(single.item<float>(), static_cast<float>(row.value)) << row.name << " " << row.element;
  }
}

TEST(Initialize, PiecesAreTheWhole) {
  const LogicalTensor logical = matrix("w", 7, 13);
  const at::Tensor whole = at::empty({91});
  initialize(logical, 0, whole, 5);
  for (const int64_t first : {0, 1, 40, 90}) {
    const at::Tensor piece = at::empty({91 - first});
    initialize(logical, first, piece, 5);
    EXPECT_TRUE(piece.equal(whole.narrow(0, first, 91 - first))) << first;
  }
}

TEST(Initialize, HasTheStatedDistribution) {
  const at::Tensor values = at::empty({200000}, at::kDouble);
  initialize(matrix("w", 200000, 1), 0, values, 1);
  EXPECT_NEAR(values.mean().item<double>(), 0, 2e-4);
  // A standard normal cut at +-3 has the variance 1 - 6 phi(3) / (1 - 2 Phi(-3)) = 0.9733.
  EXPECT_NEAR(values.var().item<double>(), 0.9733 * 4e-4, 3e-6);
  EXPECT_LE(values.abs().max().item<double>(), 0.06);
}

TEST(Parameter, StackedPartsAndTheirFragments) {
  Parameter parameter({matrix("blocks.0.attention.q.weight", 8, 5), matrix("blocks.0.attention.k.weight", 4, 5),
                       matrix("blocks.0.attention.v.weight", 4, 5)},
                      at::kFloat);
  EXPECT_EQ(parameter.name(), "blocks.0.attention.q+k+v.weight");
  EXPECT_EQ(parameter.shape(), (std::vector<int64_t>{16, 5}));
  EXPECT_TRUE(parameter.value().is_meta());
  const std::vector<Fragment> fragments = parameter.fragments();
  ASSERT_EQ(fragments.size(), 3u);
  int64_t offset = 0;
  for (const Fragment& fragment : fragments) {
    EXPECT_EQ(fragment.local_offset, offset);
    EXPECT_EQ(fragment.size, fragment.logical->shape);
    offset += fragment.elements();
  }
  EXPECT_EQ(offset, parameter.elements());
}

TEST(Parameter, RefusesPartsThatDoNotStack) {
  EXPECT_THROW(Parameter({matrix("a", 2, 3), matrix("b", 2, 4)}, at::kFloat), InternalError);
}

TEST(Parameter, CompletesByCountAndRefusesOneTooMany) {
  Parameter parameter({matrix("w", 2, 3)}, at::kFloat, /*uses=*/2);
  give_memory(parameter);
  int completions = 0;
  parameter.expect_gradients(3, [&](Parameter&) { ++completions; });
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(parameter.target().accumulate, i > 0);
    EXPECT_FALSE(parameter.complete());
    parameter.delivered();
  }
  EXPECT_TRUE(parameter.complete());
  EXPECT_EQ(completions, 1);
  EXPECT_THROW(parameter.target(), InternalError);
}

TEST(Parameter, IsNoSinkWhereNoGradientIsRecorded) {
  Parameter parameter({matrix("w", 2, 3)}, at::kFloat);
  give_memory(parameter);
  EXPECT_EQ(parameter.weight().sink, &parameter);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(parameter.weight().sink, nullptr);
}

// Each weight delivers once, on the second forward pass; nested pieces too, and the bits are those without
// recomputation.
TEST(Recompute, GivesTheSameBitsAndCountsOnce) {
  at::manual_seed(1);
  Parameter a({matrix("a", 6, 6)}, at::kFloat), b({matrix("b", 6, 6)}, at::kFloat);
  give_memory(a);
  give_memory(b);
  a.value().copy_(at::randn({6, 6}));
  b.value().copy_(at::randn({6, 6}));
  const at::Tensor input = at::randn({4, 6});
  const auto inner = [&](const at::Tensor& x) { return ops::linear(x, b.weight()).tanh(); };
  const auto plain = [&](const at::Tensor& x) { return inner(ops::linear(x, a.weight()).tanh()); };
  const auto nested = [&](const at::Tensor& x) { return recompute(inner, ops::linear(x, a.weight()).tanh()); };
  const auto run = [&](const std::function<at::Tensor(const at::Tensor&)>& piece) {
    a.expect_gradients(1, {});
    b.expect_gradients(1, {});
    const at::Tensor x = input.clone().requires_grad_();
    piece(x).square().sum().backward();
    EXPECT_TRUE(a.complete());
    EXPECT_TRUE(b.complete());
    return at::cat({x.grad().reshape({-1}), a.gradient().reshape({-1}), b.gradient().reshape({-1})});
  };
  const at::Tensor expected = run(plain);
  EXPECT_TRUE(run(nested).equal(expected));
  EXPECT_TRUE(run([&](const at::Tensor& x) { return recompute(plain, x); }).equal(expected));
  EXPECT_TRUE(run([&](const at::Tensor& x) { return recompute(nested, x); }).equal(expected));
}

}  // namespace
}  // namespace trireme::nn
