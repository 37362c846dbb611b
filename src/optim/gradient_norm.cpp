#include "optim/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "ops/sum_of_squares.h"

namespace trireme::optim {

GradientNorm gradient_norm(std::span<nn::Parameter* const> parameters, double loss_scale) {
  GradientNorm norm;
  double sum = 0;
  for (const nn::Parameter* parameter : parameters) {
    const double squares = ops::sum_of_squares(parameter->gradient());
    if (!std::isfinite(squares) && norm.not_finite.empty()) norm.not_finite = parameter->name();
    norm.each.push_back(std::sqrt(squares) / loss_scale);
    sum += squares;
  }
  norm.total = std::sqrt(sum) / loss_scale;
  return norm;
}

double clip_coefficient(double norm, double limit) { return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0; }

}  // namespace trireme::optim
