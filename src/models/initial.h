// How the logical tensors of the models start, and whether weight decay takes from them.
#pragma once

#include <cmath>
#include <string>

#include "nn/parameter.h"

namespace trireme::models {

/// Of all matrices (GPT-2's, Llama's own and TorchTitan's).
inline constexpr double kDeviation = 0.02;

/// Of the two matrices of a block that write to the residual stream (GPT-2 paper, section 2.3).
inline double residual_deviation(int64_t layers) { return kDeviation / std::sqrt(2.0 * static_cast<double>(layers)); }

/// Of a head of its own (TorchTitan).
inline double head_deviation(int64_t hidden) { return 1 / std::sqrt(static_cast<double>(hidden)); }

inline nn::LogicalTensor matrix(std::string name, int64_t rows, int64_t cols, double deviation = kDeviation) {
  return {std::move(name), {rows, cols}, {nn::Init::Kind::truncated_normal, deviation}, true};
}
inline nn::LogicalTensor norm_weight(std::string name, int64_t size) {
  return {std::move(name), {size}, {nn::Init::Kind::ones, 0}, false};
}
inline nn::LogicalTensor bias(std::string name, int64_t size) {
  return {std::move(name), {size}, {nn::Init::Kind::zeros, 0}, false};
}

}  // namespace trireme::models
