#include "ops/linear.h"

#include <ATen/ATen.h>

#include "ops/dispatch.h"
#include "ops/function.h"

namespace trireme::ops {

void deliver_product(GradientSink* sink, const at::Tensor& a, const at::Tensor& b) {
  if (sink == nullptr) return;
  // In fp32 and fp64 the product accumulates in place; bf16 products are rounded to bf16 and then added in fp32, as
  // FSDP2 with a bf16 param_dtype does.
  const GradientTarget target = sink->target();
  if (target.buffer.scalar_type() != a.scalar_type()) return deliver(sink, at::mm(a, b));
  if (target.accumulate) {
    target.buffer.addmm_(a, b);
  } else {
    at::Tensor out = target.buffer;
    at::mm_out(out, a, b);
  }
  sink->delivered();
}

namespace {

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight, int64_t sink) {
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    context->save_for_backward({rows, weight});
    context->saved_data["sink"] = sink;
    context->saved_data["shape"] = x.sizes().vec();
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return at::mm(rows, weight.t()).view(shape);
  }

  static Gradients backward(Context* context, Gradients gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor dy = gradients[0].reshape({-1, gradients[0].size(-1)});
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = at::mm(dy, saved[1]).view(context->saved_data["shape"].toIntVector());
    deliver_product(sink_of(context), dy.t(), saved[0]);
    return {dx, {}, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const Weight& weight) {
  return Linear::apply(x, weight.value, pointer(weight.sink));
}

}  // namespace trireme::ops
