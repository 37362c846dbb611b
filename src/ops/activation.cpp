#include "ops/activation.h"

#include <ATen/ATen.h>

#include "ops/dispatch.h"
#include "ops/function.h"
#include "ops/work.h"

namespace trireme::ops {

at::Tensor reference::swiglu(const at::Tensor& gate_up) {
  const auto parts = gate_up.chunk(2, -1);
  return at::silu(parts[0]) * parts[1];
}

at::Tensor reference::gelu(const at::Tensor& x) { return at::gelu(x, "tanh"); }

namespace {

struct Gelu : torch::autograd::Function<Gelu> {
  static at::Tensor forward(Context* context, const at::Tensor& input) {
    const at::Tensor x = input.contiguous();
    context->save_for_backward({x});
    at::Tensor y = at::empty_like(x);
    dispatch(x.scalar_type(), [&](auto element) {
      using T = decltype(element);
      const T* from = data<T>(x);
      T* to = data<T>(y);
      parallel_rows(x.numel(), 1, [&](int64_t begin, int64_t end) {
        kernels<T>().gelu_forward(end - begin, from + begin, to + begin);
      });
    });
    return y;
  }

  static Gradients backward(Context* context, Gradients gradients) {
    const at::Tensor x = context->get_saved_variables()[0], dy = gradients[0].contiguous();
    const profile::Scope scope(profile::Phase::backward, "gelu",
                               [&] { return pass_work({}, x.numel(), x.size(-1), 3 * bytes_of(x)); });
    at::Tensor dx = at::empty_like(x);
    dispatch(x.scalar_type(), [&](auto element) {
      using T = decltype(element);
      const T *from = data<T>(x), *upstream = data<T>(dy);
      T* to = data<T>(dx);
      parallel_rows(x.numel(), 1, [&](int64_t begin, int64_t end) {
        kernels<T>().gelu_backward(end - begin, from + begin, upstream + begin, to + begin);
      });
    });
    return {dx};
  }
};

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(Context* context, const at::Tensor& x) {
    const at::Tensor gate_up = x.contiguous();
    context->save_for_backward({gate_up});
    std::vector<int64_t> shape = x.sizes().vec();
    const int64_t cols = shape.back() / 2, rows = cols == 0 ? 0 : x.numel() / (2 * cols);
    shape.back() = cols;
    at::Tensor y = at::empty(shape, x.options());
    dispatch(x.scalar_type(), [&](auto element) {
      using T = decltype(element);
      const T* from = data<T>(gate_up);
      T* to = data<T>(y);
      parallel_rows(rows, 2 * cols, [&](int64_t begin, int64_t end) {
        kernels<T>().swiglu_forward(end - begin, cols, from + begin * 2 * cols, to + begin * cols);
      });
    });
    return y;
  }

  static Gradients backward(Context* context, Gradients gradients) {
    const at::Tensor gate_up = context->get_saved_variables()[0], dy = gradients[0].contiguous();
    const int64_t cols = dy.size(-1), rows = cols == 0 ? 0 : dy.numel() / cols;
    const profile::Scope scope(profile::Phase::backward, "swiglu",
                               [&] { return pass_work({}, dy.numel(), cols, bytes_of(gate_up, gate_up, dy)); });
    at::Tensor dx = at::empty_like(gate_up);
    dispatch(dy.scalar_type(), [&](auto element) {
      using T = decltype(element);
      const T *value = data<T>(gate_up), *upstream = data<T>(dy);
      T* to = data<T>(dx);
      parallel_rows(rows, 3 * cols, [&](int64_t begin, int64_t end) {
        kernels<T>().swiglu_backward(end - begin, cols, value + begin * 2 * cols, upstream + begin * cols,
                                     to + begin * 2 * cols);
      });
    });
    return {dx};
  }
};

}  // namespace

at::Tensor gelu(const at::Tensor& x) {
  const profile::Scope scope(profile::Phase::forward, "gelu",
                             [&] { return pass_work({}, x.numel(), x.size(-1), 2 * bytes_of(x)); });
  return on_cpu(x) ? Gelu::apply(x) : reference::gelu(x);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const profile::Scope scope(profile::Phase::forward, "swiglu", [&] {
    return pass_work({}, gate_up.numel() / 2, gate_up.size(-1) / 2, 1.5 * bytes_of(gate_up));
  });
  return on_cpu(gate_up) ? Swiglu::apply(gate_up) : reference::swiglu(gate_up);
}

}  // namespace trireme::ops
