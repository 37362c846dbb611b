// What the tests of operations share: a sink of gradients, tolerances of types, leaves of a graph.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "ops/dispatch.h"
#include "ops/gradient_sink.h"

namespace trireme::ops {

class Sink final : public GradientSink {
 public:
  explicit Sink(const at::Tensor& weight) : Sink(weight, compute_type(weight.scalar_type())) {}
  Sink(const at::Tensor& weight, at::ScalarType type)
      : buffer(at::full(weight.sizes(), NAN, weight.options().dtype(type))) {}
  GradientTarget target() override { return {buffer, begun++ > 0}; }
  void delivered() override { ++contributions; }

  at::Tensor buffer;
  int begun = 0, contributions = 0;
};

inline double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 5e-6 : type == at::kHalf ? 2.5e-3 : 2e-2;
}

// The largest difference over the largest magnitude of the reference, or `scale` where terms of that size cancel.
inline void expect_close(const at::Tensor& got, const at::Tensor& expected, double tol, const std::string& what,
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
constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

inline std::string name(at::ScalarType type, Shape shape) {
  return std::string(c10::toString(type)) + " " + std::to_string(shape.rows) + "x" + std::to_string(shape.cols);
}

inline at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType type) { return at::randn(sizes, type).requires_grad_(); }
inline at::Tensor twin(const at::Tensor& x) { return x.detach().to(compute_type(x.scalar_type())).requires_grad_(); }

}  // namespace trireme::ops
