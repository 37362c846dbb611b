#include "ops/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "describe/model_shape.h"
#include "ops/dispatch.h"
#include "ops/function.h"

namespace trireme::ops {

at::Tensor reference::linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                           double scale) {
  const at::Tensor logits = at::mm(hidden, weight.t()).to(compute_type(hidden.scalar_type()));
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, kIgnoredLabel) * scale;
}

namespace {

// Softmax cross-entropy of a chunk; with `gradient` the logits become d loss / d logits * scale.
void cross_entropy_rows(at::Tensor& logits, const at::Tensor& labels, double scale, bool gradient, at::Tensor losses) {
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  if (!on_cpu(logits)) {
    const at::Tensor wide = logits.to(losses.scalar_type());
    const at::Tensor valid = labels.ge(0), safe = labels.clamp_min(0).unsqueeze(1);
    const at::Tensor log_probabilities = wide.log_softmax(1);
    losses.copy_(-log_probabilities.gather(1, safe).squeeze(1) * valid);
    if (gradient) {
      at::Tensor p = log_probabilities.exp();
      p.scatter_add_(1, safe, at::full_like(safe, -1, p.options()));
      logits.copy_(p * (valid.unsqueeze(1) * scale));
    }
    return;
  }
  dispatch(logits.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    T* values = data<T>(logits);
    C* out = data<C>(losses);
    const int64_t* label = data<int64_t>(labels);
    parallel_rows(rows, vocab, [&](int64_t begin, int64_t end) {
      kernels<T>().cross_entropy(end - begin, vocab, values + begin * vocab, label + begin, static_cast<C>(scale),
                                 gradient, out + begin);
    });
  });
}

void check_labels(const at::Tensor& labels, int64_t vocab) {
  if (!on_cpu(labels) || labels.numel() == 0) return;
  const int64_t highest = labels.max().item<int64_t>();
  TRIREME_CHECK(highest < vocab, "label {} in a vocabulary of {}", highest, vocab);
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(Context* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& labels, double scale, int64_t sink, bool gradient) {
    const int64_t tokens = hidden.size(0), vocab = weight.size(0);
    check_labels(labels, vocab);
    const auto type = compute_type(hidden.scalar_type());
    at::Tensor losses = at::zeros({tokens}, hidden.options().dtype(type)), dhidden, dweight;
    const bool weight_gradient = gradient && sink != 0;
    if (gradient) dhidden = at::empty_like(hidden);
    if (weight_gradient) dweight = at::zeros(weight.sizes(), weight.options().dtype(type));
    const int64_t step = describe::loss_rows_per_chunk(tokens, vocab, hidden.element_size());
    for (int64_t first = 0; first < tokens; first += step) {
      const int64_t count = std::min(step, tokens - first);
      const at::Tensor rows = hidden.narrow(0, first, count);
      at::Tensor logits = at::mm(rows, weight.t());
      cross_entropy_rows(logits, labels.narrow(0, first, count), scale, gradient, losses.narrow(0, first, count));
      if (!gradient) continue;
      at::Tensor to = dhidden.narrow(0, first, count);
      at::mm_out(to, logits, weight);
      if (!weight_gradient) continue;
      if (type == hidden.scalar_type())
        dweight.addmm_(logits.t(), rows);
      else
        dweight.add_(at::mm(logits.t(), rows));
    }
    if (gradient) context->save_for_backward({dhidden, dweight});
    context->saved_data["sink"] = sink;
    // In double, so that what is reported does not depend on how the batch was cut.
    return losses.to(at::kDouble).sum() * scale;
  }

  static Gradients backward(Context* context, Gradients gradients) {
    const auto saved = context->get_saved_variables();
    at::Tensor dhidden = saved[0], dweight = saved[1];
    const double upstream = gradients[0].item<double>();
    if (upstream != 1.0) {
      dhidden = dhidden * upstream;
      if (dweight.defined()) dweight = dweight * upstream;
    }
    if (dweight.defined()) deliver(sink_of(context), dweight);
    return {dhidden, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const Weight& weight, const at::Tensor& labels,
                                double scale) {
  const bool gradient = at::GradMode::is_enabled() && hidden.requires_grad();
  return LinearCrossEntropy::apply(hidden.contiguous(), weight.value, labels.contiguous(), scale, pointer(weight.sink),
                                   gradient);
}

at::Tensor token_losses(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
  const at::NoGradGuard no_grad;
  const int64_t tokens = hidden.size(0), vocab = weight.size(0);
  check_labels(labels, vocab);
  at::Tensor losses = at::zeros({tokens}, hidden.options().dtype(compute_type(hidden.scalar_type())));
  const int64_t step = describe::loss_rows_per_chunk(tokens, vocab, hidden.element_size());
  for (int64_t first = 0; first < tokens; first += step) {
    const int64_t count = std::min(step, tokens - first);
    at::Tensor logits = at::mm(hidden.narrow(0, first, count), weight.t());
    cross_entropy_rows(logits, labels.narrow(0, first, count), 1.0, false, losses.narrow(0, first, count));
  }
  return losses;
}

}  // namespace trireme::ops
