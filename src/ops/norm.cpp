#include "ops/norm.h"

#include <ATen/ATen.h>

#include "ops/dispatch.h"
#include "ops/function.h"
#include "ops/work.h"

namespace trireme::ops {

namespace {

// A norm without a bias is RMSNorm, one with it is layer normalisation.
struct Result {
  at::Tensor h, y, mean, rstd;
};

int64_t rows_of(const at::Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

// Elsewhere than on the CPU.
Result plain_forward(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight, const at::Tensor& bias,
                     double eps) {
  const at::Tensor h = delta.defined() ? x + delta : x;
  at::Tensor wide = h.to(compute_type(x.scalar_type())), mean;
  if (bias.defined()) {
    mean = wide.mean(-1, true);
    wide = wide - mean;
  }
  const at::Tensor rstd = (wide.square().mean(-1, true) + eps).rsqrt();
  at::Tensor y = wide * rstd * weight;
  if (bias.defined()) y = y + bias;
  return {h, y.to(x.scalar_type()), mean.defined() ? mean.reshape({-1}) : mean, rstd.reshape({-1})};
}

Result forward_pass(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight, const at::Tensor& bias,
                    double eps) {
  if (!on_cpu(x)) return plain_forward(x, delta, weight, bias, eps);
  const int64_t cols = x.size(-1), rows = rows_of(x);
  const at::Tensor source = x.contiguous(), addend = delta.defined() ? delta.contiguous() : delta;
  const auto statistics = x.options().dtype(compute_type(x.scalar_type()));
  Result result{delta.defined() ? at::empty_like(source) : source, at::empty_like(source),
                bias.defined() ? at::empty({rows}, statistics) : at::Tensor(), at::empty({rows}, statistics)};
  dispatch(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    const T *from = data<T>(source), *add = data<T>(addend), *scale = data<T>(weight), *shift = data<T>(bias);
    T *h = data<T>(result.h), *y = data<T>(result.y);
    C *mean = data<C>(result.mean), *rstd = data<C>(result.rstd);
    parallel_rows(rows, cols, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * cols;
      const T* more = add == nullptr ? nullptr : add + at;
      if (shift != nullptr)
        kernels<T>().layer_norm_forward(end - begin, cols, from + at, more, scale, shift, static_cast<C>(eps), h + at,
                                        y + at, mean + begin, rstd + begin);
      else
        kernels<T>().rms_norm_forward(end - begin, cols, from + at, more, scale, static_cast<C>(eps), h + at, y + at,
                                      rstd + begin);
    });
  });
  return result;
}

// What backward needs of a forward pass. `mean` is undefined for RMSNorm.
struct Saved {
  at::Tensor h, weight, mean, rstd;
};

struct Sinks {
  GradientSink *weight = nullptr, *bias = nullptr;
};

at::Tensor plain_backward(const at::Tensor& dy, const Saved& saved, const at::Tensor& dh, const Sinks& sinks) {
  const int64_t cols = saved.h.size(-1);
  std::vector<int64_t> column = saved.h.sizes().vec();
  column.back() = 1;
  const auto type = compute_type(saved.h.scalar_type());
  const at::Tensor upstream = dy.to(type), scale = saved.rstd.view(column), pushed = upstream * saved.weight;
  at::Tensor normed = saved.h.to(type);
  if (saved.mean.defined()) normed = normed - saved.mean.view(column);
  normed = normed * scale;
  at::Tensor dx = pushed - normed * (pushed * normed).mean(-1, true);
  if (saved.mean.defined()) dx = dx - pushed.mean(-1, true);
  dx = dx * scale;
  if (dh.defined()) dx = dx + dh;
  deliver(sinks.weight, (upstream * normed).reshape({-1, cols}).sum(0));
  if (saved.mean.defined()) deliver(sinks.bias, upstream.reshape({-1, cols}).sum(0));
  return dx.to(saved.h.scalar_type());
}

// dx of the norm plus dh (may be undefined); the weights' gradients go to their sinks.
at::Tensor backward_pass(const at::Tensor& dy, const Saved& saved, const at::Tensor& dh, const Sinks& sinks) {
  const profile::Scope scope(profile::Phase::backward, saved.mean.defined() ? "layer_norm" : "rms_norm", [&] {
    return pass_work(sinks.weight == nullptr ? std::string_view() : sinks.weight->name(), saved.h.numel(),
                     saved.h.size(-1), bytes_of(dy, saved.h, saved.h, dh));
  });
  if (!on_cpu(saved.h)) return plain_backward(dy, saved, dh, sinks);
  const int64_t cols = saved.h.size(-1), rows = rows_of(saved.h);
  const at::Tensor upstream = dy.contiguous(), passed = dh.defined() ? dh.contiguous() : dh;
  at::Tensor dx = at::empty_like(saved.h);
  const int64_t blocks = sum_blocks(rows);
  const at::Tensor dweight = at::zeros({blocks, cols}, saved.rstd.options());
  const at::Tensor dbias = saved.mean.defined() ? at::zeros_like(dweight) : at::Tensor();
  dispatch(saved.h.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    const T *from = data<T>(upstream), *value = data<T>(saved.h), *scale = data<T>(saved.weight),
            *pass = data<T>(passed);
    const C *mean = data<C>(saved.mean), *inverse = data<C>(saved.rstd);
    T* to = data<T>(dx);
    C *dw = data<C>(dweight), *db = data<C>(dbias);
    parallel_rows(blocks, kSumBlock * cols, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kSumBlock, count = std::min(kSumBlock, rows - first), at = first * cols;
        const T* more = pass == nullptr ? nullptr : pass + at;
        if (mean != nullptr)
          kernels<T>().layer_norm_backward(count, cols, from + at, value + at, scale, mean + first, inverse + first,
                                           more, to + at, dw + block * cols, db + block * cols);
        else
          kernels<T>().rms_norm_backward(count, cols, from + at, value + at, scale, inverse + first, more, to + at,
                                         dw + block * cols);
      }
    });
    add_blocks(blocks, cols, dw);
    if (db != nullptr) add_blocks(blocks, cols, db);
  });
  deliver(sinks.weight, dweight[0]);
  if (dbias.defined()) deliver(sinks.bias, dbias[0]);
  return dx;
}

void save(Context* context, const Result& result, const at::Tensor& weight, int64_t sink, int64_t bias_sink) {
  context->save_for_backward({result.h, weight, result.mean, result.rstd});
  context->saved_data["sink"] = sink;
  context->saved_data["bias_sink"] = bias_sink;
}

Saved saved_of(Context* context) {
  const auto saved = context->get_saved_variables();
  return {saved[0], saved[1], saved[2], saved[3]};
}

Sinks sinks_of(Context* context) { return {sink_of(context), sink_of(context, "bias_sink")}; }

struct Norm : torch::autograd::Function<Norm> {
  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            double eps, int64_t sink, int64_t bias_sink) {
    const Result result = forward_pass(x, {}, weight, unless_empty(bias), eps);
    save(context, result, weight, sink, bias_sink);
    return result.y;
  }
  static Gradients backward(Context* context, Gradients gradients) {
    return {backward_pass(gradients[0], saved_of(context), {}, sinks_of(context)), {}, {}, {}, {}, {}};
  }
};

struct AddNorm : torch::autograd::Function<AddNorm> {
  static Gradients forward(Context* context, const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                           const at::Tensor& bias, double eps, int64_t sink, int64_t bias_sink) {
    const Result result = forward_pass(x, delta, weight, unless_empty(bias), eps);
    save(context, result, weight, sink, bias_sink);
    context->set_materialize_grads(false);
    return {result.h, result.y};
  }
  static Gradients backward(Context* context, Gradients gradients) {
    const Saved saved = saved_of(context);
    // An unused output arrives undefined: without the norm's there is nothing for the weight, but its owner still
    // counts on the contribution, so a zero goes the usual way.
    const at::Tensor dy = gradients[1].defined() ? gradients[1] : at::zeros_like(saved.h);
    const at::Tensor dx = backward_pass(dy, saved, gradients[0], sinks_of(context));
    return {dx, dx, {}, {}, {}, {}, {}};
  }
};

// The heads of every token are the rows of a norm; a block of kSumBlock tokens sums its weight gradients in order.
struct QkNorm : torch::autograd::Function<QkNorm> {
  static at::Tensor forward(Context* context, const at::Tensor& qkv, int64_t heads, int64_t kv_heads,
                            const at::Tensor& q_weight, const at::Tensor& k_weight, double eps, int64_t q_sink,
                            int64_t k_sink) {
    const int64_t head_dim = q_weight.numel(), width = qkv.size(-1), tokens = rows_of(qkv), normed = heads + kv_heads;
    at::Tensor y = at::empty_like(qkv);
    const at::Tensor rstd = at::empty({tokens, normed}, qkv.options().dtype(compute_type(qkv.scalar_type())));
    dispatch(qkv.scalar_type(), [&](auto element) {
      using T = decltype(element);
      using C = Compute<T>;
      const T *from = data<T>(qkv), *q = data<T>(q_weight), *k = data<T>(k_weight);
      T* to = data<T>(y);
      C* inverse = data<C>(rstd);
      parallel_rows(tokens, width, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
          const T* x = from + token * width;
          T* out = to + token * width;
          C* r = inverse + token * normed;
          kernels<T>().rms_norm_forward(heads, head_dim, x, nullptr, q, static_cast<C>(eps), nullptr, out, r);
          kernels<T>().rms_norm_forward(kv_heads, head_dim, x + heads * head_dim, nullptr, k, static_cast<C>(eps),
                                        nullptr, out + heads * head_dim, r + heads);
          std::copy(x + normed * head_dim, x + width, out + normed * head_dim);
        }
      });
    });
    context->save_for_backward({qkv, q_weight, k_weight, rstd});
    context->saved_data["heads"] = heads;
    context->saved_data["sink"] = q_sink;
    context->saved_data["k_sink"] = k_sink;
    return y;
  }

  static Gradients backward(Context* context, Gradients gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &qkv = saved[0], &q_weight = saved[1], &k_weight = saved[2], &rstd = saved[3];
    const int64_t heads = context->saved_data["heads"].toInt(), head_dim = q_weight.numel(), normed = rstd.size(1),
                  kv_heads = normed - heads, width = qkv.size(-1), tokens = rows_of(qkv);
    GradientSink *q_sink = sink_of(context), *k_sink = sink_of(context, "k_sink");
    const profile::Scope scope(profile::Phase::backward, "qk_norm", [&] {
      return pass_work(q_sink == nullptr ? std::string_view() : q_sink->name(), qkv.numel(), width, 3 * bytes_of(qkv));
    });
    const at::Tensor upstream = gradients[0].contiguous();
    at::Tensor dqkv = at::empty_like(qkv);
    const int64_t blocks = sum_blocks(tokens);
    const at::Tensor sums = at::zeros({blocks, 2 * head_dim}, rstd.options());
    dispatch(qkv.scalar_type(), [&](auto element) {
      using T = decltype(element);
      using C = Compute<T>;
      const T *dy = data<T>(upstream), *x = data<T>(qkv), *q = data<T>(q_weight), *k = data<T>(k_weight);
      const C* inverse = data<C>(rstd);
      T* to = data<T>(dqkv);
      C* sum = data<C>(sums);
      parallel_rows(blocks, kSumBlock * width, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin * kSumBlock; token < std::min(end * kSumBlock, tokens); ++token) {
          const int64_t at = token * width, keys = at + heads * head_dim, values = at + normed * head_dim;
          C* dw = sum + token / kSumBlock * 2 * head_dim;
          kernels<T>().rms_norm_backward(heads, head_dim, dy + at, x + at, q, inverse + token * normed, nullptr,
                                         to + at, dw);
          kernels<T>().rms_norm_backward(kv_heads, head_dim, dy + keys, x + keys, k, inverse + token * normed + heads,
                                         nullptr, to + keys, dw + head_dim);
          std::copy(dy + values, dy + at + width, to + values);
        }
      });
      add_blocks(blocks, 2 * head_dim, sum);
    });
    deliver(q_sink, sums[0].narrow(0, 0, head_dim));
    deliver(k_sink, sums[0].narrow(0, head_dim, head_dim));
    return {dqkv, {}, {}, {}, {}, {}, {}, {}};
  }
};

// norm_q and norm_k of the query and key heads of qkv; values pass.
template <typename NormQ, typename NormK>
at::Tensor normed_parts(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim, const NormQ& norm_q,
                        const NormK& norm_k) {
  const auto part = [&](int64_t first, int64_t count) { return qkv.narrow(-1, first * head_dim, count * head_dim); };
  const auto by_head = [&](const at::Tensor& x) { return x.unflatten(-1, {-1, head_dim}); };
  return at::cat({norm_q(by_head(part(0, heads))).flatten(-2), norm_k(by_head(part(heads, kv_heads))).flatten(-2),
                  part(heads + kv_heads, kv_heads)},
                 -1);
}

}  // namespace

namespace {

// Of a norm of x, to which `delta` (may be undefined) is added first.
auto norm_work(const at::Tensor& x, const at::Tensor& delta, const Weight& weight) {
  return [&x, delta, &weight] { return pass_work(weight.name, x.numel(), x.size(-1), bytes_of(x, x, delta, delta)); };
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const Weight& weight, double eps) {
  const profile::Scope scope(profile::Phase::forward, "rms_norm", norm_work(x, {}, weight));
  return Norm::apply(x, weight.value, nothing(), eps, pointer(weight.sink), pointer(nullptr));
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight,
                                                double eps) {
  const profile::Scope scope(profile::Phase::forward, "rms_norm", norm_work(x, delta, weight));
  const Gradients out = AddNorm::apply(x, delta, weight.value, nothing(), eps, pointer(weight.sink), pointer(nullptr));
  return {out[0], out[1]};
}

at::Tensor layer_norm(const at::Tensor& x, const Weight& weight, const Weight& bias, double eps) {
  const profile::Scope scope(profile::Phase::forward, "layer_norm", norm_work(x, {}, weight));
  return Norm::apply(x, weight.value, bias.value, eps, pointer(weight.sink), pointer(bias.sink));
}

std::tuple<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight,
                                                  const Weight& bias, double eps) {
  const profile::Scope scope(profile::Phase::forward, "layer_norm", norm_work(x, delta, weight));
  const Gradients out =
      AddNorm::apply(x, delta, weight.value, bias.value, eps, pointer(weight.sink), pointer(bias.sink));
  return {out[0], out[1]};
}

at::Tensor qk_norm(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, const Weight& q_weight,
                   const Weight& k_weight, double eps) {
  TRIREME_CHECK(qkv.size(-1) == (heads + 2 * kv_heads) * q_weight.value.numel(),
                "{} features for {} + 2 x {} heads of {}", qkv.size(-1), heads, kv_heads, q_weight.value.numel());
  if (!on_cpu(qkv)) {
    const auto norm = [eps](const Weight& weight) {
      return [weight, eps](const at::Tensor& x) { return rms_norm(x, weight, eps); };
    };
    return normed_parts(qkv, heads, kv_heads, q_weight.value.numel(), norm(q_weight), norm(k_weight));
  }
  const profile::Scope scope(profile::Phase::forward, "qk_norm", norm_work(qkv, {}, q_weight));
  return QkNorm::apply(qkv.contiguous(), heads, kv_heads, q_weight.value, k_weight.value, eps, pointer(q_weight.sink),
                       pointer(k_weight.sink));
}

at::Tensor reference::rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return plain_forward(x, {}, weight, {}, eps).y;
}

at::Tensor reference::layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  return plain_forward(x, {}, weight, bias, eps).y;
}

at::Tensor reference::qk_norm(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, const at::Tensor& q_weight,
                              const at::Tensor& k_weight, double eps) {
  const auto norm = [eps](const at::Tensor& weight) {
    return [weight, eps](const at::Tensor& x) { return rms_norm(x, weight, eps); };
  };
  return normed_parts(qkv, heads, kv_heads, q_weight.numel(), norm(q_weight), norm(k_weight));
}

}  // namespace trireme::ops
