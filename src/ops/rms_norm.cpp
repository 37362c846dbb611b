#include "ops/rms_norm.h"

#include <ATen/ATen.h>

#include "ops/dispatch.h"
#include "ops/function.h"

namespace trireme::ops {

at::Tensor reference::rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(compute_type(x.scalar_type()));
  const at::Tensor rstd = (wide.square().mean(-1, true) + eps).rsqrt();
  return (wide * rstd * weight).to(x.scalar_type());
}

namespace {

// Rows whose weight gradients are summed one after another; the blocks are then added in order. A split by shape, so
// that the sum does not depend on how many threads there are.
constexpr int64_t kBlock = 128;

struct Result {
  at::Tensor h, y, rstd;
};

Result forward_pass(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight, double eps) {
  const int64_t cols = x.size(-1), rows = cols == 0 ? 0 : x.numel() / cols;
  if (!on_cpu(x)) {
    const at::Tensor h = delta.defined() ? x + delta : x;
    const at::Tensor wide = h.to(compute_type(x.scalar_type()));
    const at::Tensor rstd = (wide.square().mean(-1, true) + eps).rsqrt();
    return {h, (wide * rstd * weight).to(x.scalar_type()), rstd.reshape({rows})};
  }
  const at::Tensor source = x.contiguous(), addend = delta.defined() ? delta.contiguous() : delta;
  Result result{delta.defined() ? at::empty_like(source) : source, at::empty_like(source),
                at::empty({rows}, x.options().dtype(compute_type(x.scalar_type())))};
  dispatch(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    const T *from = data<T>(source), *add = data<T>(addend), *scale = data<T>(weight);
    T *h = data<T>(result.h), *y = data<T>(result.y);
    C* rstd = data<C>(result.rstd);
    parallel_rows(rows, cols, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * cols;
      kernels<T>().rms_norm_forward(end - begin, cols, from + at, add == nullptr ? nullptr : add + at, scale,
                                    static_cast<C>(eps), h + at, y + at, rstd + begin);
    });
  });
  return result;
}

// dx of the norm plus dh (may be undefined); the weight's gradient goes to the sink.
at::Tensor backward_pass(const at::Tensor& dy, const at::Tensor& h, const at::Tensor& weight, const at::Tensor& rstd,
                         const at::Tensor& dh, GradientSink* sink) {
  const int64_t cols = h.size(-1), rows = cols == 0 ? 0 : h.numel() / cols;
  if (!on_cpu(h)) {
    std::vector<int64_t> column = h.sizes().vec();
    column.back() = 1;
    const auto type = compute_type(h.scalar_type());
    const at::Tensor wide = h.to(type), upstream = dy.to(type), scale = rstd.view(column);
    const at::Tensor pull = (upstream * weight * wide).mean(-1, true) * scale.pow(3);
    at::Tensor dx = upstream * weight * scale - wide * pull;
    if (dh.defined()) dx = dx + dh;
    deliver(sink, (upstream * wide * scale).reshape({-1, cols}).sum(0));
    return dx.to(h.scalar_type());
  }
  const at::Tensor upstream = dy.contiguous(), passed = dh.defined() ? dh.contiguous() : dh;
  at::Tensor dx = at::empty_like(h);
  const int64_t blocks = (rows + kBlock - 1) / kBlock;
  const at::Tensor partial = at::zeros({std::max<int64_t>(blocks, 1), cols}, rstd.options());
  dispatch(h.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    const T *from = data<T>(upstream), *value = data<T>(h), *scale = data<T>(weight), *pass = data<T>(passed);
    const C* inverse = data<C>(rstd);
    T* to = data<T>(dx);
    C* sums = data<C>(partial);
    parallel_rows(blocks, kBlock * cols, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, count = std::min(kBlock, rows - first), at = first * cols;
        kernels<T>().rms_norm_backward(count, cols, from + at, value + at, scale, inverse + first,
                                       pass == nullptr ? nullptr : pass + at, to + at, sums + block * cols);
      }
    });
    for (int64_t block = 1; block < blocks; ++block) kernels<C>().add_to(cols, sums + block * cols, sums, true);
  });
  deliver(sink, partial[0]);
  return dx;
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight, double eps, int64_t sink) {
    const Result result = forward_pass(x, {}, weight, eps);
    context->save_for_backward({result.h, weight, result.rstd});
    context->saved_data["sink"] = sink;
    return result.y;
  }
  static Gradients backward(Context* context, Gradients gradients) {
    const auto saved = context->get_saved_variables();
    return {backward_pass(gradients[0], saved[0], saved[1], saved[2], {}, sink_of(context)), {}, {}, {}};
  }
};

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static Gradients forward(Context* context, const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                           double eps, int64_t sink) {
    const Result result = forward_pass(x, delta, weight, eps);
    context->save_for_backward({result.h, weight, result.rstd});
    context->saved_data["sink"] = sink;
    context->set_materialize_grads(false);
    return {result.h, result.y};
  }
  static Gradients backward(Context* context, Gradients gradients) {
    const auto saved = context->get_saved_variables();
    // An unused output arrives undefined: without the norm's there is nothing for the weight, but its owner still
    // counts on the contribution, so a zero goes the usual way.
    const at::Tensor dy = gradients[1].defined() ? gradients[1] : at::zeros_like(saved[0]);
    const at::Tensor dx = backward_pass(dy, saved[0], saved[1], saved[2], gradients[0], sink_of(context));
    return {dx, dx, {}, {}, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const Weight& weight, double eps) {
  return RmsNorm::apply(x, weight.value, eps, pointer(weight.sink));
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight,
                                                double eps) {
  const Gradients out = AddRmsNorm::apply(x, delta, weight.value, eps, pointer(weight.sink));
  return {out[0], out[1]};
}

}  // namespace trireme::ops
