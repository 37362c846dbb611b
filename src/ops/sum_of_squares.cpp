#include "ops/sum_of_squares.h"

#include <ATen/ATen.h>

#include <vector>

#include "ops/dispatch.h"
#include "ops/work.h"

namespace trireme::ops {
namespace {

template <typename C>
double sum_of(const at::Tensor& values, int64_t begin, int64_t end) {
  double sum = 0;
  for_each_widened<C>(values, begin, end, [&](int64_t from, int64_t to, const C* wide) {
    sum += kernels<C>().sum_of_squares(to - from, wide);
  });
  return sum;
}

}  // namespace

double sum_of_squares(const at::Tensor& values) {
  const profile::Scope scope(profile::Phase::optimizer, "sum of squares",
                             [&] { return profile::Work{.bytes = bytes_of(values)}; });
  if (!on_cpu(values)) return values.to(at::kDouble).square().sum().item<double>();
  constexpr int64_t kPiece = 1 << 16;  // elements whose sum is one number; the numbers are added in order
  const int64_t count = values.numel(), pieces = (count + kPiece - 1) / kPiece;
  std::vector<double> sums(static_cast<size_t>(pieces));
  dispatch(values.scalar_type(), [&](auto element) {
    using C = Compute<decltype(element)>;
    parallel_rows(pieces, kPiece, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece)
        sums[static_cast<size_t>(piece)] = sum_of<C>(values, piece * kPiece, std::min(count, (piece + 1) * kPiece));
    });
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

at::Tensor sums_of_squares_of_rows(const at::Tensor& values) {
  const int64_t rows = values.size(0), length = rows == 0 ? 0 : values.numel() / rows;
  if (!on_cpu(values)) return values.to(at::kDouble).square().reshape({rows, length}).sum(1).cpu();
  const at::Tensor sums = at::empty({rows}, at::kDouble);
  auto* to = sums.mutable_data_ptr<double>();
  dispatch(values.scalar_type(), [&](auto element) {
    using C = Compute<decltype(element)>;
    parallel_rows(rows, length, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) to[row] = sum_of<C>(values, row * length, (row + 1) * length);
    });
  });
  return sums;
}

}  // namespace trireme::ops
