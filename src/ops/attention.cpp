#include "ops/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "ops/dispatch.h"
#include "ops/function.h"

namespace trireme::ops {
namespace {

// Views of the heads [first, first + count) as [batch, heads, seq, head_dim].
at::Tensor heads_of(const at::Tensor& qkv, int64_t first, int64_t count, int64_t head_dim) {
  return qkv.view({qkv.size(0), qkv.size(1), -1, head_dim}).narrow(2, first, count).transpose(1, 2);
}

// Each key/value head once per query head that uses it. ATen's flash kernel wants equal head counts.
at::Tensor repeat_heads(const at::Tensor& x, int64_t group) {
  if (group == 1) return x;
  return x.unsqueeze(2).expand({-1, -1, group, -1, -1}).reshape({x.size(0), -1, x.size(2), x.size(3)});
}

void rotate_in_place(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                     const at::Tensor& positions, int64_t heads, bool inverse) {
  const int64_t width = qkv.size(-1), rows = width == 0 ? 0 : qkv.numel() / width;
  TRIREME_CHECK(positions.numel() == rows, "{} positions for {} tokens", positions.numel(), rows);
  dispatch(qkv.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    T* values = data<T>(qkv);
    const C *cosine = data<C>(rotary.cosine), *sine = data<C>(rotary.sine);
    const int64_t* position = data<int64_t>(positions);
    parallel_rows(rows, width, [&](int64_t begin, int64_t end) {
      kernels<T>().rotate(end - begin, width, heads, shape.head_dim, values + begin * width, cosine, sine,
                          position + begin, inverse);
    });
  });
}

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(Context* context, const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim,
                            const at::Tensor& cosine, const at::Tensor& sine, const at::Tensor& positions) {
    const AttentionShape shape{heads, kv_heads, head_dim};
    rotate_in_place(qkv, shape, {cosine, sine}, positions, heads + kv_heads, false);
    const auto [q, k, v] = split(qkv, shape);
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, /*is_causal=*/true);
    context->save_for_backward({qkv, out, logsumexp, cosine, sine, positions});
    context->saved_data["heads"] = heads;
    context->saved_data["kv_heads"] = kv_heads;
    context->saved_data["head_dim"] = head_dim;
    return out.transpose(1, 2).reshape({qkv.size(0), qkv.size(1), heads * head_dim});
  }

  static Gradients backward(Context* context, Gradients gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &qkv = saved[0], &out = saved[1], &logsumexp = saved[2];
    const AttentionShape shape{context->saved_data["heads"].toInt(), context->saved_data["kv_heads"].toInt(),
                               context->saved_data["head_dim"].toInt()};
    const auto [q, k, v] = split(qkv, shape);
    const at::Tensor dout = heads_of(gradients[0].contiguous(), 0, shape.heads, shape.head_dim);
    const auto [dq, dk, dv] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, logsumexp, 0.0, true);
    at::Tensor dqkv = at::empty_like(qkv);
    gather(shape, dq, dk, dv, dqkv);
    rotate_in_place(dqkv, shape, {saved[3], saved[4]}, saved[5], shape.heads + shape.kv_heads, true);
    return {dqkv, {}, {}, {}, {}, {}, {}};
  }

  static std::tuple<at::Tensor, at::Tensor, at::Tensor> split(const at::Tensor& qkv, const AttentionShape& shape) {
    const int64_t group = shape.heads / shape.kv_heads;
    return {heads_of(qkv, 0, shape.heads, shape.head_dim),
            repeat_heads(heads_of(qkv, shape.heads, shape.kv_heads, shape.head_dim), group),
            repeat_heads(heads_of(qkv, shape.heads + shape.kv_heads, shape.kv_heads, shape.head_dim), group)};
  }

  static void gather(const AttentionShape& shape, const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                     at::Tensor& dqkv) {
    const int64_t seq = dqkv.size(1), width = dqkv.size(2);
    TRIREME_CHECK(dq.stride(3) == 1 && dk.stride(3) == 1 && dv.stride(3) == 1, "flash attention changed its layout");
    dispatch(dqkv.scalar_type(), [&](auto element) {
      using T = decltype(element);
      const T *q = static_cast<const T*>(dq.data_ptr()), *k = static_cast<const T*>(dk.data_ptr()),
              *v = static_cast<const T*>(dv.data_ptr());
      T* to = data<T>(dqkv);
      parallel_rows(dqkv.size(0) * seq, width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t b = row / seq, s = row % seq;
          kernels<T>().gather_qkv_gradient(shape.heads, shape.kv_heads, shape.head_dim,
                                           q + b * dq.stride(0) + s * dq.stride(2), dq.stride(1),
                                           k + b * dk.stride(0) + s * dk.stride(2), dk.stride(1),
                                           v + b * dv.stride(0) + s * dv.stride(2), dv.stride(1), to + row * width);
        }
      });
    });
  }
};

// Rotation from ATen operations: [batch, heads, seq, head_dim].
at::Tensor rotated(const at::Tensor& x, const RotaryTable& rotary, const at::Tensor& positions) {
  const auto angles = [&](const at::Tensor& table) {
    return table.index_select(0, positions).view({x.size(0), 1, x.size(2), -1});
  };
  const at::Tensor c = angles(rotary.cosine), s = angles(rotary.sine);
  const auto halves = x.to(c.scalar_type()).chunk(2, -1);
  return at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1).to(x.scalar_type());
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions) {
  if (!on_cpu(qkv) || qkv.numel() == 0) return reference::causal_attention(qkv, shape, rotary, positions);
  return CausalAttention::apply(qkv.contiguous(), shape.heads, shape.kv_heads, shape.head_dim, rotary.cosine,
                                rotary.sine, positions);
}

at::Tensor reference::causal_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                                       const at::Tensor& positions) {
  const int64_t batch = qkv.size(0), seq = qkv.size(1), group = shape.heads / shape.kv_heads;
  const at::Tensor q = rotated(heads_of(qkv, 0, shape.heads, shape.head_dim), rotary, positions);
  const at::Tensor k = rotated(heads_of(qkv, shape.heads, shape.kv_heads, shape.head_dim), rotary, positions);
  const at::Tensor v = heads_of(qkv, shape.heads + shape.kv_heads, shape.kv_heads, shape.head_dim);
  at::Tensor scores =
      at::matmul(q, repeat_heads(k, group).transpose(2, 3)) / std::sqrt(static_cast<double>(shape.head_dim));
  const at::Tensor future = at::ones({seq, seq}, qkv.options().dtype(at::kBool)).triu(1);
  const at::Tensor weights = scores.to(rotary.cosine.scalar_type()).masked_fill(future, -INFINITY).softmax(-1);
  return at::matmul(weights.to(qkv.scalar_type()), repeat_heads(v, group))
      .transpose(1, 2)
      .reshape({batch, seq, shape.heads * shape.head_dim});
}

at::Tensor cached_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions, KeyValueCache& cache) {
  const at::NoGradGuard no_grad;
  const int64_t batch = qkv.size(0), seq = qkv.size(1), group = shape.heads / shape.kv_heads;
  TRIREME_CHECK(cache.length + seq <= cache.keys.size(2), "{} + {} tokens for a cache of {}", cache.length, seq,
                cache.keys.size(2));
  const at::Tensor q = rotated(heads_of(qkv, 0, shape.heads, shape.head_dim), rotary, positions);
  cache.keys.narrow(2, cache.length, seq)
      .copy_(rotated(heads_of(qkv, shape.heads, shape.kv_heads, shape.head_dim), rotary, positions));
  cache.values.narrow(2, cache.length, seq)
      .copy_(heads_of(qkv, shape.heads + shape.kv_heads, shape.kv_heads, shape.head_dim));
  cache.length += seq;
  const at::Tensor k = repeat_heads(cache.keys.narrow(2, 0, cache.length), group);
  const at::Tensor v = repeat_heads(cache.values.narrow(2, 0, cache.length), group);
  // Row i of the new tokens may see everything up to itself: true where the key is allowed.
  std::optional<at::Tensor> mask;
  if (seq > 1) mask = at::ones({seq, cache.length}, q.options().dtype(at::kBool)).tril(cache.length - seq);
  const at::Tensor out = at::scaled_dot_product_attention(q, k, v, mask);
  return out.transpose(1, 2).reshape({batch, seq, shape.heads * shape.head_dim});
}

}  // namespace trireme::ops
