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

}  // namespace trireme::ops
