#include "ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "ops/dispatch.h"
#include "ops/function.h"
#include "ops/matmul.h"
#include "ops/work.h"

namespace trireme::ops {

void deliver_product(GradientSink* sink, const at::Tensor& a, const at::Tensor& b) {
  if (sink == nullptr) return;
  const GradientTarget target = sink->target();
  {
    const profile::Scope scope(profile::Phase::backward, "linear, weight gradient", [&] {
      return product_work(sink->name(), a.size(0), b.size(1), a.size(1), a.element_size(), target.buffer.element_size(),
                          target.accumulate);
    });
    add_product(target.buffer, a, b, target.accumulate);
  }
  sink->delivered();
}

namespace {

at::Tensor sum_of_rows(const at::Tensor& input, std::string_view name) {
  const profile::Scope scope(profile::Phase::backward, "linear, bias gradient",
                             [&] { return pass_work(name, input.numel(), input.size(-1), bytes_of(input)); });
  const auto type = compute_type(input.scalar_type());
  if (!on_cpu(input)) return input.to(type).sum(0);
  const at::Tensor x = input.contiguous();
  const int64_t rows = x.size(0), cols = x.size(1), blocks = sum_blocks(rows);
  const at::Tensor partial = at::zeros({blocks, cols}, x.options().dtype(type));
  dispatch(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    const T* from = data<T>(x);
    C* sums = data<C>(partial);
    parallel_rows(blocks, kSumBlock * cols, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kSumBlock;
        kernels<T>().add_rows(std::min(kSumBlock, rows - first), cols, from + first * cols, sums + block * cols);
      }
    });
    add_blocks(blocks, cols, sums);
  });
  return partial[0];
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            int64_t sink, int64_t bias_sink, const Holder<Rebuild>& rebuild) {
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    context->save_for_backward({rebuild ? at::Tensor() : rows, weight});
    if (rebuild) keep(context, "rebuild", rebuild);
    context->saved_data["sink"] = sink;
    context->saved_data["bias_sink"] = bias_sink;
    context->saved_data["shape"] = x.sizes().vec();
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return product(rows, weight.t(), bias.numel() == 0 ? at::Tensor() : bias).view(shape);
  }

  static Gradients backward(Context* context, Gradients gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor dy = gradients[0].reshape({-1, gradients[0].size(-1)});
    GradientSink* sink = sink_of(context);
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      const profile::Scope scope(profile::Phase::backward, "linear, input gradient", [&] {
        return product_work(sink == nullptr ? std::string_view() : sink->name(), dy.size(0), saved[1].size(1),
                            dy.size(1), dy.element_size(), dy.element_size());
      });
      dx = product(dy, saved[1]).view(context->saved_data["shape"].toIntVector());
    }
    if (GradientSink* bias = sink_of(context, "bias_sink")) deliver(bias, sum_of_rows(dy, bias->name()));
    if (sink != nullptr) deliver_product(sink, dy.t(), input_of(context, saved[0]));
    return {dx, {}, {}, {}, {}, {}};
  }

  static at::Tensor input_of(Context* context, const at::Tensor& kept) {
    if (kept.defined()) return kept;
    const at::NoGradGuard no_grad;
    const at::Tensor x = ops::kept<Rebuild>(context, "rebuild")();
    return x.reshape({-1, x.size(-1)});
  }
};

at::Tensor apply(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, GradientSink* bias_sink,
                 const Rebuild& rebuild) {
  const profile::Scope scope(profile::Phase::forward, "linear", [&] {
    const int64_t in = x.size(-1);
    return product_work(weight.name, in == 0 ? 0 : x.numel() / in, weight.value.size(0), in, x.element_size(),
                        x.element_size());
  });
  const Holder<Rebuild> holder = rebuild && at::GradMode::is_enabled() ? hold(rebuild) : Holder<Rebuild>();
  return Linear::apply(x, weight.value, bias, pointer(weight.sink), pointer(bias_sink), holder);
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const Weight& weight, const Rebuild& rebuild) {
  return apply(x, weight, nothing(), nullptr, rebuild);
}

at::Tensor linear(const at::Tensor& x, const Weight& weight, const Weight& bias, const Rebuild& rebuild) {
  return apply(x, weight, bias.value, bias.sink, rebuild);
}

}  // namespace trireme::ops
