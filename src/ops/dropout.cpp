#include "ops/dropout.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "ops/dispatch.h"
#include "ops/function.h"
#include "ops/work.h"

namespace trireme::ops {

random::Key Dropout::key(std::string_view place) const {
  return random::make_key(seed, fmt::format("dropout/{}", place));
}

namespace {

// Elements of one piece of work: long enough to hide the call, short enough to share a single row among threads. Whole
// words of the mask.
constexpr int64_t kPiece = 1 << 14;

// Calls body(kernels' type, row, first element of the row, elements, place in x, words of the mask) for pieces of x
// [rows, ..], whose rows begin with a word of their own in the mask [rows, words].
template <typename Body>
void for_each_piece(const at::Tensor& x, const at::Tensor& mask, const Body& body) {
  const int64_t rows = x.size(0), per_row = rows == 0 ? 0 : x.numel() / rows, pieces = (per_row + kPiece - 1) / kPiece;
  auto* words = static_cast<uint32_t*>(mask.data_ptr());
  dispatch(x.scalar_type(), [&](auto element) {
    parallel_rows(rows * pieces, std::min(per_row, kPiece), [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        const int64_t row = piece / pieces, first = piece % pieces * kPiece;
        body(element, row, first, std::min(kPiece, per_row - first), row * per_row + first,
             words + row * mask.size(1) + first / kMaskBits);
      }
    });
  });
}

double scale_of(double probability) { return 1 / (1 - probability); }

// Elsewhere than on a CPU the words are drawn on the host: slow, but the same.
struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(Context* context, const at::Tensor& input, const at::Tensor& samples, double probability,
                            int64_t key, bool backward) {
    const at::Tensor x = input.contiguous().cpu();
    TRIREME_CHECK(samples.numel() == x.size(0), "{} samples for {} rows", samples.numel(), x.size(0));
    const int64_t rows = x.size(0), per_row = rows == 0 ? 0 : x.numel() / rows;
    const at::Tensor y = at::empty_like(x),
                     mask = at::empty({rows, backward ? (per_row + kMaskBits - 1) / kMaskBits : 0}, at::kInt);
    const auto threshold = static_cast<uint32_t>(probability * 0x1p32);
    const int64_t* sample = data<int64_t>(samples);
    for_each_piece(x, mask, [&](auto element, int64_t row, int64_t first, int64_t count, int64_t at, uint32_t* kept) {
      using T = decltype(element);
      const uint64_t number =
          static_cast<uint64_t>(sample[row]) * static_cast<uint64_t>(per_row) + static_cast<uint64_t>(first);
      kernels<T>().dropout_forward(count, data<T>(x) + at, data<T>(y) + at, backward ? kept : nullptr,
                                   static_cast<uint64_t>(key), number, threshold,
                                   static_cast<Compute<T>>(scale_of(probability)));
    });
    context->save_for_backward({mask});
    context->saved_data["probability"] = probability;
    return y.to(input.device());
  }
  static Gradients backward(Context* context, Gradients gradients) {
    const profile::Scope scope(profile::Phase::backward, "dropout", [&] {
      return pass_work({}, gradients[0].numel(), gradients[0].size(-1), 2 * bytes_of(gradients[0]));
    });
    const at::Tensor dy = gradients[0].contiguous().cpu(), dx = at::empty_like(dy);
    const double scale = scale_of(context->saved_data["probability"].toDouble());
    for_each_piece(dy, context->get_saved_variables()[0],
                   [&](auto element, int64_t, int64_t, int64_t count, int64_t at, const uint32_t* kept) {
                     using T = decltype(element);
                     kernels<T>().dropout_backward(count, data<T>(dy) + at, kept, data<T>(dx) + at,
                                                   static_cast<Compute<T>>(scale));
                   });
    return {dx.to(gradients[0].device()), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& x, const Dropout& dropout, std::string_view place) {
  if (!dropout.active()) return x;
  const profile::Scope scope(profile::Phase::forward, "dropout",
                             [&] { return pass_work({}, x.numel(), x.size(-1), 2 * bytes_of(x)); });
  return DropoutFunction::apply(x, dropout.samples, dropout.probability, static_cast<int64_t>(dropout.key(place).value),
                                at::GradMode::is_enabled() && x.requires_grad());
}

}  // namespace trireme::ops
