// Every fused operation of ops/ at the sizes of a model, ready to be timed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"

namespace trireme::train {

/// What the operations of a step work on.
struct OperationSize {
  std::string name;
  int64_t batch, seq, hidden, heads, kv_heads, head_dim, ffn, vocab;
  int64_t tokens() const { return batch * seq; }
};

/// 30m, 124m and 350m: the models of configs/bench.
const std::vector<OperationSize>& bench_sizes();
/// That of a run's micro-batch.
OperationSize operation_size(const config::Config& config, std::string name);

struct OperationCase {
  std::string name;   ///< "rms_norm backward"
  std::string shape;  ///< "2048 x 384"
  double flops = 0;   ///< of one call; 0 for what is bound by memory
  double bytes = 0;   ///< read and written, each operand once
  /// Allocates the operands and returns the call that is timed.
  std::function<std::function<void()>()> prepare;
};

/// In the order of a step. Operations work in `dtype` (bf16, fp16, fp32 or fp64); optimizer and sums in its compute
/// type.
std::vector<OperationCase> operation_cases(const OperationSize& size, at::ScalarType dtype);

/// Fixed small numbers without a pattern that a norm or a softmax would find constant: [sizes] of `dtype`.
at::Tensor operand(at::IntArrayRef sizes, at::ScalarType dtype, int64_t number = 0);

}  // namespace trireme::train
