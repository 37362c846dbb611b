// This machine's matrix product rate: what MFU is measured against.
//
// Square products C = A B of one dtype, made as those of the linears of a model (ops/matmul.h), on this process's
// thread team. The best of several is taken: what disturbs a measurement only slows it down. Workers share the machine,
// so all of them must measure at the same time for the sum of their rates to be the machine's: `together` is a barrier.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace trireme::observe {

struct MatmulRateOptions {
  int64_t size = 2048;   ///< n of the n x n matrices; halved until one product takes at most a third of `seconds`
  double seconds = 0.3;  ///< how long products are repeated, in stretches of 0.05 s, at least three of them
  /// Called right before the repetitions begin and right after they end; empty: this process is alone.
  std::function<void()> together;
  std::function<double()> clock;  ///< seconds; empty: the machine's. Tests give another
};

struct MatmulRate {
  double flops_per_second = 0;  ///< of the best stretch, 2 n^3 a product
  int64_t size = 0;             ///< the n that was used
  int64_t repetitions = 0;
};

MatmulRate measure_matmul_rate(at::ScalarType dtype, const MatmulRateOptions& options = {});

/// Makes one product after another, of n x n matrices, and tells the seconds of each; ends when `told` throws.
void repeat_products(at::ScalarType dtype, int64_t size, const std::function<void(double)>& told);

}  // namespace trireme::observe
