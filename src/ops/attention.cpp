#include "ops/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "ops/attention_tiles.h"
#include "ops/dispatch.h"
#include "ops/function.h"
#include "ops/work.h"

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

std::vector<Piece> pieces_of(const at::Tensor& qkv, const AttentionMask& mask) {
  if (!mask.segments) return {{0, qkv.size(0), 0, qkv.size(1)}};
  std::vector<Piece> pieces;
  int64_t tokens = 0;
  for (const Segment& segment : *mask.segments) {
    pieces.push_back({segment.row, 1, segment.first, segment.length});
    tokens += segment.length;
  }
  TRIREME_CHECK(tokens == qkv.size(0) * qkv.size(1), "segments of {} tokens for {} x {}", tokens, qkv.size(0),
                qkv.size(1));
  return pieces;
}

// x [batch, heads, seq, head_dim]
at::Tensor part_of(const at::Tensor& x, const Piece& piece) {
  return x.narrow(0, piece.row, piece.rows).narrow(2, piece.first, piece.length);
}

// True where one of the last `queries` of `keys` tokens (row) sees a key (column): neither later, nor out of the
// window.
at::Tensor visible(int64_t queries, int64_t keys, int64_t window, at::Device device) {
  const int64_t before = keys - queries;
  const at::Tensor all = at::ones({queries, keys}, at::TensorOptions(at::kBool).device(device)).tril(before);
  return window > 0 ? all.triu(before + 1 - window) : all;
}

// The mask that the flash kernel adds to the scores of a piece, when the window is shorter than it. It depends on i - j
// alone, so that of a shorter piece is a corner of that of a longer one.
std::optional<at::Tensor> added_mask(const at::Tensor& q, const Piece& piece, const AttentionMask& mask) {
  if (mask.window <= 0 || mask.window >= piece.length) return std::nullopt;
  const auto make = [&] {
    return at::zeros({piece.length, piece.length}, q.options())
        .masked_fill_(visible(piece.length, piece.length, mask.window, q.device()).logical_not(), -INFINITY);
  };
  if (mask.added == nullptr) return make();
  at::Tensor& kept = *mask.added;
  if (!kept.defined() || kept.size(0) < piece.length || kept.scalar_type() != q.scalar_type()) kept = make();
  return kept.narrow(0, 0, piece.length).narrow(1, 0, piece.length);
}

// Of the pairs that see each other alone: two products for scores and output, four for their gradients. The scores that
// backward makes again are not counted, nor what a tile or a mask computes beyond them.
profile::Work attention_work(const at::Tensor& qkv, const AttentionShape& shape, const AttentionMask& mask,
                             double passes, double bytes) {
  double pairs = 0;
  for (const Piece& piece : pieces_of(qkv, mask))
    if (piece.length > 0)
      pairs += static_cast<double>(piece.rows * piece.length) * describe::causal_tokens_seen(piece.length, mask.window);
  return {.shape = {qkv.size(0) * qkv.size(1), shape.heads * shape.head_dim, -1},
          .flops = passes * 4 * static_cast<double>(shape.heads * shape.head_dim) * pairs,
          .bytes = bytes};
}

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(Context* context, const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim,
                            const at::Tensor& cosine, const at::Tensor& sine, const at::Tensor& positions,
                            const Holder<AttentionMask>& holder) {
    const AttentionShape shape{heads, kv_heads, head_dim};
    const AttentionMask& mask = holder->value;
    if (cosine.numel() > 0) rotate(qkv, heads + kv_heads, head_dim, {cosine, sine}, positions, false);
    context->saved_data["heads"] = heads;
    context->saved_data["kv_heads"] = kv_heads;
    context->saved_data["head_dim"] = head_dim;
    keep(context, "mask", holder);
    const profile::Scope scope(profile::Phase::forward, "attention", [&] {
      const double out = bytes_of(qkv) * static_cast<double>(heads) / static_cast<double>(heads + 2 * kv_heads);
      return attention_work(qkv, shape, mask, 1, bytes_of(qkv) + out);
    });
    const std::vector<Piece> pieces = pieces_of(qkv, mask);
    if (tiles_apply(qkv, shape)) {
      const at::Tensor out = at::empty({qkv.size(0), qkv.size(1), heads * head_dim}, qkv.options());
      const at::Tensor logsumexp = at::empty({qkv.size(0), heads, qkv.size(1)}, qkv.options().dtype(at::kFloat));
      attention_tiles(qkv, shape, pieces, mask.window, out, logsumexp);
      context->save_for_backward({qkv, out, cosine, sine, positions, logsumexp});
      return out;
    }
    const auto [q, k, v] = split(qkv, shape);
    const bool whole = pieces.size() == 1 && pieces[0].rows == qkv.size(0);
    // [batch, seq, heads, head_dim] in memory, as the next projection reads it.
    at::Tensor out =
        whole ? at::Tensor() : at::empty({qkv.size(0), qkv.size(1), heads, head_dim}, qkv.options()).transpose(1, 2);
    Gradients saved = {qkv, out, cosine, sine, positions};
    for (const Piece& piece : pieces) {
      const auto added = added_mask(q, piece, mask);
      auto [result, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
          part_of(q, piece), part_of(k, piece), part_of(v, piece), 0.0, /*is_causal=*/!added.has_value(), added);
      if (whole)
        saved[1] = out = result;
      else
        part_of(out, piece).copy_(result);
      saved.push_back(logsumexp);
    }
    context->save_for_backward(saved);
    return out.transpose(1, 2).reshape({qkv.size(0), qkv.size(1), heads * head_dim});
  }

  static Gradients backward(Context* context, Gradients gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &qkv = saved[0], &out = saved[1];
    const AttentionShape shape{context->saved_data["heads"].toInt(), context->saved_data["kv_heads"].toInt(),
                               context->saved_data["head_dim"].toInt()};
    const AttentionMask& mask = kept<AttentionMask>(context, "mask");
    at::Tensor dqkv = at::empty_like(qkv);
    {
      const profile::Scope scope(profile::Phase::backward, "attention",
                                 [&] { return attention_work(qkv, shape, mask, 2, bytes_of(qkv, dqkv, out, out)); });
      if (tiles_apply(qkv, shape))
        attention_tiles_backward(gradients[0].contiguous(), qkv, shape, pieces_of(qkv, mask), mask.window, out,
                                 saved[5], dqkv);
      else
        flash_backward(gradients[0].contiguous(), saved, shape, mask, dqkv);
    }
    if (saved[2].numel() > 0)
      rotate(dqkv, shape.heads + shape.kv_heads, shape.head_dim, {saved[2], saved[3]}, saved[4], true);
    return {dqkv, {}, {}, {}, {}, {}, {}, {}};
  }

  static void flash_backward(const at::Tensor& gradient, const Gradients& saved, const AttentionShape& shape,
                             const AttentionMask& mask, at::Tensor& dqkv) {
    const at::Tensor &qkv = saved[0], &out = saved[1];
    const auto [q, k, v] = split(qkv, shape);
    const at::Tensor dout = heads_of(gradient, 0, shape.heads, shape.head_dim);
    const std::vector<Piece> pieces = pieces_of(qkv, mask);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      const auto added = added_mask(q, piece, mask);
      const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          part_of(dout, piece), part_of(q, piece), part_of(k, piece), part_of(v, piece), part_of(out, piece),
          saved[5 + i], 0.0, !added.has_value(), added);
      gather(shape, piece, dq, dk, dv, dqkv);
    }
  }

  static std::tuple<at::Tensor, at::Tensor, at::Tensor> split(const at::Tensor& qkv, const AttentionShape& shape) {
    const int64_t group = shape.heads / shape.kv_heads;
    return {heads_of(qkv, 0, shape.heads, shape.head_dim),
            repeat_heads(heads_of(qkv, shape.heads, shape.kv_heads, shape.head_dim), group),
            repeat_heads(heads_of(qkv, shape.heads + shape.kv_heads, shape.kv_heads, shape.head_dim), group)};
  }

  static void gather(const AttentionShape& shape, const Piece& piece, const at::Tensor& dq, const at::Tensor& dk,
                     const at::Tensor& dv, at::Tensor& dqkv) {
    const int64_t seq = dqkv.size(1), width = dqkv.size(2);
    TRIREME_CHECK(dq.stride(3) == 1 && dk.stride(3) == 1 && dv.stride(3) == 1, "flash attention changed its layout");
    dispatch(dqkv.scalar_type(), [&](auto element) {
      using T = decltype(element);
      const T *q = static_cast<const T*>(dq.data_ptr()), *k = static_cast<const T*>(dk.data_ptr()),
              *v = static_cast<const T*>(dv.data_ptr());
      T* to = data<T>(dqkv);
      parallel_rows(piece.rows * piece.length, width, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
          const int64_t b = token / piece.length, s = token % piece.length;
          kernels<T>().gather_qkv_gradient(
              shape.heads, shape.kv_heads, shape.head_dim, q + b * dq.stride(0) + s * dq.stride(2), dq.stride(1),
              k + b * dk.stride(0) + s * dk.stride(2), dk.stride(1), v + b * dv.stride(0) + s * dv.stride(2),
              dv.stride(1), to + ((piece.row + b) * seq + piece.first + s) * width);
        }
      });
    });
  }
};

// Rotation from ATen operations: [batch, heads, seq, head_dim].
at::Tensor rotated(const at::Tensor& x, const RotaryTable& rotary, const at::Tensor& positions) {
  if (!rotary.active()) return x;
  const auto angles = [&](const at::Tensor& table) {
    return table.index_select(0, positions).view({x.size(0), 1, x.size(2), -1});
  };
  const at::Tensor c = angles(rotary.cosine), s = angles(rotary.sine);
  const auto halves = x.to(c.scalar_type()).chunk(2, -1);
  return at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1).to(x.scalar_type());
}

// True where a query must not see a key: [seq, seq], or [batch, 1, seq, seq] with segments.
at::Tensor hidden_pairs(const at::Tensor& qkv, const AttentionMask& mask) {
  const int64_t batch = qkv.size(0), seq = qkv.size(1);
  const at::Tensor hidden = visible(seq, seq, mask.window, qkv.device()).logical_not();
  if (!mask.segments) return hidden;
  const at::Tensor number = at::empty({batch, seq}, at::kLong);
  int64_t next = 0;
  for (const Segment& segment : *mask.segments)
    number.select(0, segment.row).narrow(0, segment.first, segment.length).fill_(next++);
  const at::Tensor other = number.unsqueeze(2).ne(number.unsqueeze(1)).to(qkv.device());
  return hidden.logical_or(other).unsqueeze(1);
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions, const AttentionMask& mask) {
  if (!on_cpu(qkv) || qkv.numel() == 0) return reference::causal_attention(qkv, shape, rotary, positions, mask);
  const RotaryTable table = rotary.active() ? rotary : RotaryTable{nothing(), nothing()};
  return CausalAttention::apply(qkv.contiguous(), shape.heads, shape.kv_heads, shape.head_dim, table.cosine, table.sine,
                                positions, hold(mask));
}

at::Tensor causal_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions, const AttentionMask& mask, const Dropout& dropout,
                            std::string_view place) {
  if (!dropout.active()) return causal_attention(qkv, shape, rotary, positions, mask);
  return reference::causal_attention(qkv, shape, rotary, positions, mask, dropout, place);
}

at::Tensor reference::causal_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                                       const at::Tensor& positions, const AttentionMask& mask, const Dropout& dropout,
                                       std::string_view place) {
  const int64_t batch = qkv.size(0), seq = qkv.size(1), group = shape.heads / shape.kv_heads;
  const auto wide = compute_type(qkv.scalar_type());
  const at::Tensor q = rotated(heads_of(qkv, 0, shape.heads, shape.head_dim), rotary, positions);
  const at::Tensor k = rotated(heads_of(qkv, shape.heads, shape.kv_heads, shape.head_dim), rotary, positions);
  const at::Tensor v = heads_of(qkv, shape.heads + shape.kv_heads, shape.kv_heads, shape.head_dim);
  // In the compute type, as the flash kernel has them: in fp16 a product before its scaling would be infinite.
  const at::Tensor scores = at::matmul(q.to(wide), repeat_heads(k, group).transpose(2, 3).to(wide)) /
                            std::sqrt(static_cast<double>(shape.head_dim));
  const at::Tensor weights = scores.masked_fill(hidden_pairs(qkv, mask), -INFINITY).softmax(-1).to(qkv.scalar_type());
  return at::matmul(ops::dropout(weights, dropout, place), repeat_heads(v, group))
      .transpose(1, 2)
      .reshape({batch, seq, shape.heads * shape.head_dim});
}

at::Tensor cached_attention(const at::Tensor& qkv, const AttentionShape& shape, const RotaryTable& rotary,
                            const at::Tensor& positions, KeyValueCache& cache, int64_t window) {
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
  if (seq > 1 || window > 0) mask = visible(seq, cache.length, window, q.device());
  const at::Tensor out = at::scaled_dot_product_attention(q, k, v, mask);
  return out.transpose(1, 2).reshape({batch, seq, shape.heads * shape.head_dim});
}

}  // namespace trireme::ops
