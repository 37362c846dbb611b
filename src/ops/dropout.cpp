#include "ops/dropout.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "ops/dispatch.h"
#include "ops/function.h"
#include "ops/work.h"

namespace trireme::ops {

random::Key Dropout::key(std::string_view place) const {
  return random::make_key(seed, fmt::format("dropout/{}", place));
}

namespace {

// Elements of one piece of work: long enough to hide the call, short enough to share a single row among threads.
constexpr int64_t kPiece = 1 << 14;

at::Tensor masked(const at::Tensor& input, const at::Tensor& samples, double probability, random::Key key) {
  // Elsewhere than on a CPU the words are drawn on the host: slow, but the same.
  const at::Tensor x = input.contiguous().cpu();
  TRIREME_CHECK(samples.numel() == x.size(0), "{} samples for {} rows", samples.numel(), x.size(0));
  at::Tensor y = at::empty_like(x);
  const int64_t rows = x.size(0), per_row = rows == 0 ? 0 : x.numel() / rows, pieces = (per_row + kPiece - 1) / kPiece;
  const auto threshold = static_cast<uint32_t>(probability * 0x1p32);
  const int64_t* sample = data<int64_t>(samples);
  dispatch(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T* from = data<T>(x);
    T* to = data<T>(y);
    parallel_rows(rows * pieces, std::min(per_row, kPiece), [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        const int64_t row = piece / pieces, first = piece % pieces * kPiece, at = row * per_row + first;
        const uint64_t number =
            static_cast<uint64_t>(sample[row]) * static_cast<uint64_t>(per_row) + static_cast<uint64_t>(first);
        kernels<T>().dropout(std::min(kPiece, per_row - first), from + at, to + at, key.value, number, threshold,
                             static_cast<Compute<T>>(1 / (1 - probability)));
      }
    });
  });
  return y.to(input.device());
}

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& samples, double probability,
                            int64_t key) {
    context->save_for_backward({samples});
    context->saved_data["probability"] = probability;
    context->saved_data["key"] = key;
    return masked(x, samples, probability, {static_cast<uint64_t>(key)});
  }
  static Gradients backward(Context* context, Gradients gradients) {
    const profile::Scope scope(profile::Phase::backward, "dropout", [&] {
      return pass_work({}, gradients[0].numel(), gradients[0].size(-1), 2 * bytes_of(gradients[0]));
    });
    return {masked(gradients[0], context->get_saved_variables()[0], context->saved_data["probability"].toDouble(),
                   {static_cast<uint64_t>(context->saved_data["key"].toInt())}),
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& x, const Dropout& dropout, std::string_view place) {
  if (!dropout.active()) return x;
  const profile::Scope scope(profile::Phase::forward, "dropout",
                             [&] { return pass_work({}, x.numel(), x.size(-1), 2 * bytes_of(x)); });
  return DropoutFunction::apply(x, dropout.samples, dropout.probability,
                                static_cast<int64_t>(dropout.key(place).value));
}

}  // namespace trireme::ops
