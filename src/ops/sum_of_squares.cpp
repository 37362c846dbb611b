#include "ops/sum_of_squares.h"

#include <ATen/ATen.h>

#include <vector>

#include "ops/dispatch.h"
#include "ops/work.h"

namespace trireme::ops {

double sum_of_squares(const at::Tensor& values) {
  const profile::Scope scope(profile::Phase::optimizer, "sum of squares",
                             [&] { return profile::Work{.bytes = bytes_of(values)}; });
  if (!on_cpu(values)) return values.to(at::kDouble).square().sum().item<double>();
  constexpr int64_t kPiece = 1 << 16;  // elements whose sum is one number; the numbers are added in order
  const int64_t count = values.numel(), pieces = (count + kPiece - 1) / kPiece;
  std::vector<double> sums(static_cast<size_t>(pieces));
  dispatch(values.scalar_type(), [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, Compute<T>>) {
      const T* from = data<T>(values);
      parallel_rows(pieces, kPiece, [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; ++piece)
          sums[static_cast<size_t>(piece)] =
              kernels<T>().sum_of_squares(std::min(kPiece, count - piece * kPiece), from + piece * kPiece);
      });
    } else {
      throw_internal("sum_of_squares takes float or double");
    }
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
    using T = decltype(element);
    if constexpr (std::is_same_v<T, Compute<T>>) {
      const T* from = data<T>(values);
      parallel_rows(rows, length, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) to[row] = kernels<T>().sum_of_squares(length, from + row * length);
      });
    } else {
      throw_internal("sums_of_squares_of_rows takes float or double");
    }
  });
  return sums;
}

}  // namespace trireme::ops
