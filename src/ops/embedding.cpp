#include "ops/embedding.h"

#include <ATen/ATen.h>

#include <cstring>

#include "ops/dispatch.h"
#include "ops/function.h"

namespace trireme::ops {
namespace {

// Threads share the columns, not the tokens, so that each sum has one order.
void add_rows(const at::Tensor& tokens, const at::Tensor& gradient, const GradientTarget& target) {
  if (!target.accumulate) target.buffer.zero_();
  const int64_t hidden = gradient.size(-1), count = tokens.numel();
  if (!on_cpu(gradient)) {
    // Sorted and summed in one order; index_add_ would use atomics.
    target.buffer.index_put_({tokens.reshape({-1})}, gradient.reshape({-1, hidden}).to(target.buffer.scalar_type()),
                             /*accumulate=*/true);
    return;
  }
  const at::Tensor rows = gradient.contiguous();
  const int64_t* ids = data<int64_t>(tokens);
  dispatch(rows.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T* from = data<T>(rows);
    Compute<T>* to = data<Compute<T>>(target.buffer);
    parallel_rows(hidden, count, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < count; ++i)
        kernels<T>().add_to(end - begin, from + i * hidden + begin, to + ids[i] * hidden + begin, true);
    });
  });
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(Context* context, const at::Tensor& tokens, const at::Tensor& weight, int64_t sink,
                            const at::Tensor& /*anchor*/) {
    context->save_for_backward({tokens});
    context->saved_data["sink"] = sink;
    return at::embedding(weight, tokens);
  }
  static Gradients backward(Context* context, Gradients gradients) {
    if (GradientSink* sink = sink_of(context)) {
      add_rows(context->get_saved_variables()[0], gradients[0], sink->target());
      sink->delivered();
    }
    return {{}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& tokens, const Weight& weight, const at::Tensor& anchor) {
  return Embedding::apply(tokens.contiguous(), weight.value, pointer(weight.sink), anchor);
}

}  // namespace trireme::ops
