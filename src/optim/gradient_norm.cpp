#include "optim/gradient_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "ops/sum_of_squares.h"

namespace trireme::optim {

GradientNorm gradient_norm(std::span<nn::Parameter* const> parameters, comm::Communicator& shards, double loss_scale) {
  const at::Tensor squares = at::zeros({static_cast<int64_t>(parameters.size())}, at::kDouble);
  auto* of = squares.mutable_data_ptr<double>();
  for (size_t i = 0; i < parameters.size(); ++i) of[i] = ops::sum_of_squares(parameters[i]->gradient());
  shards.all_reduce(squares);
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

double clip_coefficient(double norm, double limit) { return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0; }

}  // namespace trireme::optim
