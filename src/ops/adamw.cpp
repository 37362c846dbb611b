#include "ops/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "ops/dispatch.h"
#include "ops/work.h"

namespace trireme::ops {

void reference::adamw(const at::Tensor& weight, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                      const at::Tensor& gradient, const at::Tensor& copy, const AdamwStep& step) {
  const at::NoGradGuard no_grad;
  const double bias1 = 1 - std::pow(step.beta1, step.step), bias2 = 1 - std::pow(step.beta2, step.step);
  const at::Tensor g = gradient.to(weight.scalar_type()) * step.gradient_scale;
  exp_avg.mul_(step.beta1).add_(g, 1 - step.beta1);
  exp_avg_sq.mul_(step.beta2).addcmul_(g, g, 1 - step.beta2);
  weight.mul_(1 - step.lr * step.weight_decay);
  weight.addcdiv_(exp_avg, (exp_avg_sq.sqrt() / std::sqrt(bias2)).add_(step.eps), -step.lr / bias1);
  if (copy.defined()) copy.copy_(weight);
}

void adamw(const at::Tensor& weight, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
           const at::Tensor& gradient, const at::Tensor& copy, const AdamwStep& step) {
  const profile::Scope scope(profile::Phase::optimizer, "adamw", [&] {
    return profile::Work{.bytes = 2 * bytes_of(weight, exp_avg, exp_avg_sq) + bytes_of(gradient, copy)};
  });
  if (!on_cpu(weight)) return reference::adamw(weight, exp_avg, exp_avg_sq, gradient, copy, step);
  const double bias1 = 1 - std::pow(step.beta1, step.step), bias2 = 1 - std::pow(step.beta2, step.step);
  dispatch(copy.defined() ? copy.scalar_type() : weight.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    C *w = data<C>(weight), *m = data<C>(exp_avg), *v = data<C>(exp_avg_sq);
    T* c = data<T>(copy);
    const auto update = [&](int64_t begin, int64_t end, const C* g) {
      kernels<T>().adamw(end - begin, w + begin, m + begin, v + begin, g, c == nullptr ? nullptr : c + begin, step.lr,
                         step.beta1, step.beta2, step.eps, step.weight_decay, bias1, bias2, step.gradient_scale);
    };
    parallel_rows(weight.numel(), 8,
                  [&](int64_t begin, int64_t end) { for_each_widened<C>(gradient, begin, end, update); });
  });
}

}  // namespace trireme::ops
