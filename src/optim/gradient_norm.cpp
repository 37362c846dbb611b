#include "optim/gradient_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/sum_of_squares.h"

namespace trireme::optim {

namespace {

// Of each parameter: what this rank holds.
std::vector<double> squares_by_shards(std::span<nn::Parameter* const> parameters) {
  std::vector<double> squares;
  for (const nn::Parameter* parameter : parameters) squares.push_back(ops::sum_of_squares(parameter->gradient()));
  return squares;
}

void sum_over_shards(std::vector<double>& squares, comm::Communicator& shards) {
  shards.all_reduce(at::from_blob(squares.data(), {static_cast<int64_t>(squares.size())}, at::kDouble));
}

std::vector<double> squares_by_rows(std::span<nn::Parameter* const> parameters, comm::Communicator& shards) {
  std::vector<at::Tensor> mine, all;
  std::vector<int64_t> rows;
  for (const nn::Parameter* parameter : parameters) {
    mine.push_back(ops::sums_of_squares_of_rows(parameter->gradient()));
    all.push_back(at::empty({parameter->shape()[0]}, at::kDouble));
    for (int64_t r = 0; r < shards.size(); ++r)
      rows.push_back(nn::rows_of_rank(parameter->shape()[0], r, shards.size()).size());
  }
  shards.all_gather_v(all, mine, rows);
  std::vector<double> squares;
  for (const at::Tensor& sums : all) {
    const auto* row = sums.const_data_ptr<double>();
    squares.push_back(std::accumulate(row, row + sums.numel(), 0.0));
  }
  return squares;
}

GradientNorm norm_of(std::span<nn::Parameter* const> parameters, const std::vector<double>& of, double loss_scale) {
  GradientNorm norm;
  double sum = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!std::isfinite(of[i]) && norm.not_finite.empty()) norm.not_finite = parameters[i]->name();
    norm.each.push_back(std::sqrt(of[i]) / loss_scale);
    sum += of[i];
  }
  norm.total = std::sqrt(sum) / loss_scale;
  return norm;
}

}  // namespace

GradientNorm gradient_norm(std::span<nn::Parameter* const> parameters, comm::Communicator& shards, double loss_scale,
                           bool by_rows) {
  if (by_rows) return norm_of(parameters, squares_by_rows(parameters, shards), loss_scale);
  std::vector<double> squares = squares_by_shards(parameters);
  sum_over_shards(squares, shards);
  return norm_of(parameters, squares, loss_scale);
}

GradientNorm gradient_norm(std::span<nn::Parameter* const> parameters, std::vector<double> squares,
                           comm::Communicator& shards) {
  sum_over_shards(squares, shards);
  return norm_of(parameters, squares, 1);
}

double clip_coefficient(double norm, double limit) { return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0; }

}  // namespace trireme::optim
