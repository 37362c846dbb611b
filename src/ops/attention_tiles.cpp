#include "ops/attention_tiles.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/attention_kernels.h"
#include "ops/dispatch.h"
#include "ops/tile_product.h"

namespace trireme::ops {

#ifdef __x86_64__
namespace avx512_bf16 {
const AttentionKernels& attention_table();
}
const AttentionKernels& attention_kernels() {
  TRIREME_CHECK(tile_products_apply(), "attention in tiles on a processor without tile registers");
  return avx512_bf16::attention_table();
}
#else
const AttentionKernels& attention_kernels() { throw_internal("attention in tiles is for x86-64"); }
#endif

namespace {

int64_t tiles_of(int64_t tokens) { return (tokens + kTile - 1) / kTile; }

// Aligned memory that lives as long as a thread's share of the work.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t elements)
      : memory_(at::empty({elements * static_cast<int64_t>(sizeof(T))}, at::kByte)),
        data_(reinterpret_cast<T*>(memory_.mutable_data_ptr<uint8_t>())) {}
  T* at(int64_t element) { return data_ + element; }
  operator T*() { return data_; }

 private:
  at::Tensor memory_;
  T* data_;
};

// A piece of one row of the batch, and one head of keys and values with the queries that share it.
struct Task {
  int64_t row, first, length, kv_head;
};

class Problem {
 public:
  Problem(const at::Tensor& qkv, const AttentionShape& shape, int64_t window)
      : seq(qkv.size(1)),
        row(qkv.size(2)),
        heads(shape.heads),
        kv_heads(shape.kv_heads),
        head_dim(shape.head_dim),
        group(shape.heads / shape.kv_heads),
        width((shape.head_dim + 31) / 32 * 32),
        window(window > 0 ? window : std::numeric_limits<int64_t>::max()),
        scale(1.0F / std::sqrt(static_cast<float>(shape.head_dim))) {}

  std::vector<Task> tasks(std::span<const Piece> pieces) const {
    std::vector<Task> all;
    for (const Piece& piece : pieces)
      for (int64_t i = 0; i < piece.rows; ++i)
        for (int64_t head = 0; head < kv_heads; ++head)
          if (piece.length > 0) all.push_back({piece.row + i, piece.first, piece.length, head});
    return all;
  }

  // Of the first token of a tile: head `head` of a fused row, and of a row of `heads` heads.
  template <typename T>
  T* fused(T* qkv, const Task& task, int64_t tile, int64_t head) const {
    return qkv + (task.row * seq + task.first + tile * kTile) * row + head * head_dim;
  }
  template <typename T>
  T* plain(T* out, const Task& task, int64_t tile, int64_t head) const {
    return out + ((task.row * seq + task.first + tile * kTile) * heads + head) * head_dim;
  }
  float* statistic(float* logsumexp, const Task& task, int64_t tile, int64_t head) const {
    return logsumexp + (task.row * heads + head) * seq + task.first + tile * kTile;
  }
  int64_t key_head(const Task& task) const { return heads + task.kv_head; }
  int64_t value_head(const Task& task) const { return heads + kv_heads + task.kv_head; }
  int64_t query_head(const Task& task, int64_t member) const { return task.kv_head * group + member; }

  static int64_t tokens_in(const Task& task, int64_t tile) { return std::min(kTile, task.length - tile * kTile); }
  // The first tile of keys that a tile of queries sees; the last is that of the queries.
  int64_t first_tile(int64_t queries) const {
    const int64_t first = queries * kTile;
    return first < window ? 0 : (first - window + 1) / kTile;
  }
  TileMask mask(int64_t queries, int64_t keys) const { return {(queries - keys) * kTile, window}; }

  const int64_t seq, row, heads, kv_heads, head_dim, group, width, window;
  const float scale;
};

// Runs body(tasks, products) over the team; a task is done by one thread, so no sum depends on how many there are.
template <typename Body>
void over_tasks(const std::vector<Task>& tasks, Body&& body) {
  at::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    body(std::span(tasks).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), TileProducts());
  });
}

int64_t most_tiles(std::span<const Task> tasks) {
  int64_t most = 0;
  for (const Task& task : tasks) most = std::max(most, tiles_of(task.length));
  return most;
}

}  // namespace

bool tiles_apply(const at::Tensor& qkv, const AttentionShape& shape) {
  return tile_products_apply() && on_cpu(qkv) && qkv.scalar_type() == at::kBFloat16 && shape.head_dim <= kMostTileWidth;
}

void attention_tiles(const at::Tensor& qkv, const AttentionShape& shape, std::span<const Piece> pieces, int64_t window,
                     const at::Tensor& out, const at::Tensor& logsumexp) {
  const Problem p(qkv, shape, window);
  const AttentionKernels& kernels = attention_kernels();
  const Bf16* from = data<Bf16>(qkv);
  Bf16* to = data<Bf16>(out);
  float* statistics = data<float>(logsumexp);
  over_tasks(p.tasks(pieces), [&](std::span<const Task> tasks, const TileProducts& products) {
    const int64_t most = most_tiles(tasks), size = kTile * p.width;
    Buffer<Bf16> keys(most * size), values(most * size), queries(size), weights(kTile * kTile);
    Buffer<float> scores(kTile * kTile), sums(size), factor(kTile);
    RunningSoftmax softmax;
    for (const Task& task : tasks) {
      const int64_t tiles = tiles_of(task.length);
      for (int64_t j = 0; j < tiles; ++j) {
        const int64_t count = Problem::tokens_in(task, j);
        kernels.copy(count, p.head_dim, p.fused(from, task, j, p.key_head(task)), p.row, p.width, keys.at(j * size));
        kernels.transpose(count, p.head_dim, p.fused(from, task, j, p.value_head(task)), p.row, p.width,
                          values.at(j * size));
      }
      for (int64_t member = 0; member < p.group; ++member) {
        const int64_t head = p.query_head(task, member);
        for (int64_t i = 0; i < tiles; ++i) {
          const int64_t count = Problem::tokens_in(task, i), start = p.first_tile(i);
          kernels.pair_transposed(count, p.head_dim, p.fused(from, task, i, head), p.row, p.width, queries);
          std::ranges::fill(softmax.highest, kLowestScore);
          std::ranges::fill(softmax.sum, 0.0F);
          for (int64_t j = start; j <= i; ++j) {
            products.multiply(kTile, kTile, p.width, keys.at(j * size), queries, scores, false);
            kernels.softmax(p.mask(i, j), p.scale, scores, &softmax, factor, weights);
            if (j > start) kernels.scale_columns(p.width, factor, sums);
            products.multiply(p.width, kTile, kTile, values.at(j * size), weights, sums, j > start);
          }
          kernels.finish(count, p.head_dim, p.width, p.scale, sums, softmax, p.plain(to, task, i, head),
                         p.heads * p.head_dim, p.statistic(statistics, task, i, head));
        }
      }
    }
  });
}

void attention_tiles_backward(const at::Tensor& dout, const at::Tensor& qkv, const AttentionShape& shape,
                              std::span<const Piece> pieces, int64_t window, const at::Tensor& out,
                              const at::Tensor& logsumexp, const at::Tensor& dqkv) {
  const Problem p(qkv, shape, window);
  const AttentionKernels& kernels = attention_kernels();
  const Bf16 *from = data<Bf16>(qkv), *result = data<Bf16>(out), *upstream = data<Bf16>(dout);
  float* statistics = data<float>(logsumexp);
  Bf16* to = data<Bf16>(dqkv);
  over_tasks(p.tasks(pieces), [&](std::span<const Task> tasks, const TileProducts& products) {
    const int64_t most = most_tiles(tasks), size = kTile * p.width, out_row = p.heads * p.head_dim;
    Buffer<Bf16> keys(most * size), turned_keys(most * size), values(most * size);
    Buffer<Bf16> queries(size), turned_queries(size), gradients(size), turned_gradients(size);
    Buffer<Bf16> weights(kTile * kTile), dscores(kTile * kTile), dscores_in_pairs(kTile * kTile);
    Buffer<float> dkeys(most * size), dvalues(most * size), dqueries(size);
    Buffer<float> scores(kTile * kTile), dweights(kTile * kTile), shift(kTile), dot(kTile);
    for (const Task& task : tasks) {
      const int64_t tiles = tiles_of(task.length);
      for (int64_t j = 0; j < tiles; ++j) {
        const int64_t count = Problem::tokens_in(task, j);
        const Bf16 *key = p.fused(from, task, j, p.key_head(task)), *value = p.fused(from, task, j, p.value_head(task));
        kernels.copy(count, p.head_dim, key, p.row, p.width, keys.at(j * size));
        kernels.transpose(count, p.head_dim, key, p.row, p.width, turned_keys.at(j * size));
        kernels.copy(count, p.head_dim, value, p.row, p.width, values.at(j * size));
      }
      for (int64_t member = 0; member < p.group; ++member) {
        const int64_t head = p.query_head(task, member);
        for (int64_t i = 0; i < tiles; ++i) {
          const int64_t count = Problem::tokens_in(task, i), start = p.first_tile(i);
          const Bf16* query = p.fused(from, task, i, head);
          const Bf16* gradient = p.plain(upstream, task, i, head);
          kernels.pair(count, p.head_dim, query, p.row, p.width, queries);
          kernels.pair_transposed(count, p.head_dim, query, p.row, p.width, turned_queries);
          kernels.pair(count, p.head_dim, gradient, out_row, p.width, gradients);
          kernels.pair_transposed(count, p.head_dim, gradient, out_row, p.width, turned_gradients);
          std::fill_n(shift.at(0), kTile, 0.0F);
          std::fill_n(dot.at(0), kTile, 0.0F);
          std::copy_n(p.statistic(statistics, task, i, head), count, shift.at(0));
          kernels.dot(count, p.head_dim, gradient, out_row, p.plain(result, task, i, head), out_row, dot);
          for (int64_t j = start; j <= i; ++j) {
            products.multiply(kTile, kTile, p.width, keys.at(j * size), turned_queries, scores, false);
            products.multiply(kTile, kTile, p.width, values.at(j * size), turned_gradients, dweights, false);
            kernels.softmax_gradient(p.mask(i, j), p.scale, scores, dweights, shift, dot, weights, dscores,
                                     dscores_in_pairs);
            // The first queries that see these keys: those of their own tile.
            const bool add = member > 0 || i > j;
            products.multiply(kTile, p.width, kTile, weights, gradients, dvalues.at(j * size), add);
            products.multiply(kTile, p.width, kTile, dscores, queries, dkeys.at(j * size), add);
            products.multiply(p.width, kTile, kTile, turned_keys.at(j * size), dscores_in_pairs, dqueries, j > start);
          }
          kernels.store_transposed(count, p.head_dim, p.width, dqueries, p.fused(to, task, i, head), p.row);
        }
      }
      for (int64_t j = 0; j < tiles; ++j) {
        const int64_t count = Problem::tokens_in(task, j);
        kernels.store(count, p.head_dim, p.width, dkeys.at(j * size), p.fused(to, task, j, p.key_head(task)), p.row);
        kernels.store(count, p.head_dim, p.width, dvalues.at(j * size), p.fused(to, task, j, p.value_head(task)),
                      p.row);
      }
    }
  });
}

}  // namespace trireme::ops
