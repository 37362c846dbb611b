#include "ops/embedding.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/dispatch.h"
#include "ops/function.h"
#include "ops/work.h"

namespace trireme::ops {
namespace {

// Into a table in the type of the rows itself: a frequent token's rows are summed in the compute type and rounded once.
void add_rows_rounded(const at::Tensor& tokens, const at::Tensor& rows, const at::Tensor& table) {
  const int64_t hidden = rows.size(-1), count = tokens.numel();
  const int64_t* ids = data<int64_t>(tokens);
  // The places of each token together, in their order; `first` has where each token's begin.
  std::vector<int64_t> places(static_cast<size_t>(count)), first;
  std::iota(places.begin(), places.end(), 0);
  std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) { return ids[a] < ids[b]; });
  for (size_t i = 0; i < places.size(); ++i)
    if (i == 0 || ids[places[i]] != ids[places[i - 1]]) first.push_back(static_cast<int64_t>(i));
  first.push_back(count);
  dispatch(rows.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    const T* from = data<T>(rows);
    T* to = data<T>(table);
    parallel_rows(static_cast<int64_t>(first.size()) - 1, hidden, [&](int64_t begin, int64_t end) {
      std::vector<C> sums(static_cast<size_t>(hidden));
      for (int64_t t = begin; t < end; ++t) {
        const auto at = static_cast<size_t>(t);
        T* row = to + ids[places[static_cast<size_t>(first[at])]] * hidden;
        kernels<T>().add_to(hidden, row, sums.data(), false);
        for (int64_t i = first[at]; i < first[at + 1]; ++i)
          kernels<T>().add_to(hidden, from + places[static_cast<size_t>(i)] * hidden, sums.data(), true);
        kernels<T>().round_to(hidden, sums.data(), row);
      }
    });
  });
}

// Threads share the columns, not the tokens, so that each sum has one order.
void add_rows(const at::Tensor& tokens, const at::Tensor& gradient, const GradientTarget& target) {
  if (!target.accumulate) target.buffer.zero_();
  const int64_t hidden = gradient.size(-1), count = tokens.numel();
  if (!on_cpu(gradient)) {
    // Sorted and summed in one order; index_add_ would use atomics. In the compute type, and rounded once.
    const at::ScalarType wide = compute_type(gradient.scalar_type());
    const bool rounds = target.buffer.scalar_type() != wide;
    at::Tensor sums = rounds ? at::zeros_like(target.buffer, target.buffer.options().dtype(wide)) : target.buffer;
    sums.index_put_({tokens.reshape({-1})}, gradient.reshape({-1, hidden}).to(wide), /*accumulate=*/true);
    if (rounds) at::Tensor(target.buffer).add_(sums);
    return;
  }
  const at::Tensor rows = gradient.contiguous();
  if (target.buffer.scalar_type() != compute_type(rows.scalar_type()))
    return add_rows_rounded(tokens, rows.to(target.buffer.scalar_type()), target.buffer);
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
      const GradientTarget target = sink->target();
      {
        // Each token's row of the gradient is read, and that of the table read and written.
        const profile::Scope scope(profile::Phase::backward, "embedding", [&] {
          const auto wide = static_cast<double>(target.buffer.element_size()), rows = bytes_of(gradients[0]);
          return pass_work(sink->name(), gradients[0].numel(), gradients[0].size(-1),
                           rows + 2 * wide * static_cast<double>(gradients[0].numel()) +
                               (target.accumulate ? 0 : bytes_of(target.buffer)));
        });
        add_rows(context->get_saved_variables()[0], gradients[0], target);
      }
      sink->delivered();
    }
    return {{}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& tokens, const Weight& weight, const at::Tensor& anchor) {
  const profile::Scope scope(profile::Phase::forward, "embedding", [&] {
    const int64_t elements = tokens.numel() * weight.value.size(1);
    return pass_work(weight.name, elements, weight.value.size(1),
                     2.0 * static_cast<double>(elements * weight.value.element_size()));
  });
  return Embedding::apply(tokens.contiguous(), weight.value, pointer(weight.sink), anchor);
}

}  // namespace trireme::ops
