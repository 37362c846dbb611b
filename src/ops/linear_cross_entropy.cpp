#include "ops/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "describe/model_shape.h"
#include "memory/purpose.h"
#include "ops/dispatch.h"
#include "ops/function.h"
#include "ops/matmul.h"
#include "ops/work.h"

namespace trireme::ops {

at::Tensor reference::linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                           double scale, double z_loss, double soft_cap) {
  const at::Tensor logits = soft_capped(at::mm(hidden, weight.t()).to(compute_type(hidden.scalar_type())), soft_cap);
  const at::Tensor z = (logits.logsumexp(1).square() * labels.ge(0)).sum();
  return (at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, kIgnoredLabel) + z_loss * z) * scale;
}

at::Tensor soft_capped(const at::Tensor& logits, double cap) { return cap > 0 ? (logits / cap).tanh() * cap : logits; }

namespace {

// What is added to the cross-entropy of logits, and what is done to them before.
struct Terms {
  double scale = 1, z_loss = 0, soft_cap = 0;
};

// Softmax cross-entropy of a chunk into losses, and the squares of log sum exp into z (may be undefined); with
// `gradient` the logits become d (loss + z_loss * z) / d logits * scale.
void cross_entropy_rows(at::Tensor& logits, const at::Tensor& labels, const Terms& terms, bool gradient,
                        at::Tensor losses, at::Tensor z) {
  const profile::Scope scope(profile::Phase::forward, "cross-entropy", [&] {
    return pass_work({}, logits.numel(), logits.size(1), bytes_of(logits) * (gradient ? 2 : 1));
  });
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  if (!on_cpu(logits)) {
    const at::Tensor wide = soft_capped(logits.to(losses.scalar_type()), terms.soft_cap);
    const at::Tensor valid = labels.ge(0), safe = labels.clamp_min(0).unsqueeze(1);
    const at::Tensor log_sum = wide.logsumexp(1, true), log_probabilities = wide - log_sum;
    losses.copy_(-log_probabilities.gather(1, safe).squeeze(1) * valid);
    if (z.defined()) z.copy_(log_sum.squeeze(1).square() * valid);
    if (gradient) {
      at::Tensor p = log_probabilities.exp() * (1 + 2 * terms.z_loss * log_sum);
      p.scatter_add_(1, safe, at::full_like(safe, -1, p.options()));
      if (terms.soft_cap > 0) p *= 1 - (wide / terms.soft_cap).square();
      logits.copy_(p * (valid.unsqueeze(1) * terms.scale));
    }
    return;
  }
  dispatch(logits.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using C = Compute<T>;
    T* values = data<T>(logits);
    C *out = data<C>(losses), *squares = data<C>(z);
    const int64_t* label = data<int64_t>(labels);
    parallel_rows(rows, vocab, [&](int64_t begin, int64_t end) {
      const memory::PurposeScope purpose(memory::Purpose::loss);
      const at::Tensor scratch = at::empty({gradient ? vocab : 0}, losses.options());
      kernels<T>().cross_entropy(end - begin, vocab, values + begin * vocab, label + begin, static_cast<C>(terms.scale),
                                 static_cast<C>(terms.z_loss), static_cast<C>(terms.soft_cap), gradient, out + begin,
                                 squares == nullptr ? nullptr : squares + begin, data<C>(scratch));
    });
  });
}

void check_labels(const at::Tensor& labels, int64_t vocab) {
  if (!on_cpu(labels) || labels.numel() == 0) return;
  const int64_t highest = labels.max().item<int64_t>();
  TRIREME_CHECK(highest < vocab, "label {} in a vocabulary of {}", highest, vocab);
}

// Products with the head's weight [vocab, hidden]: of rows [rows, hidden] with it, of the gradient of the logits with
// it, and of that with the rows.
at::Tensor logits_of(const at::Tensor& rows, const at::Tensor& weight) {
  const profile::Scope scope(profile::Phase::forward, "head", [&] {
    return product_work({}, rows.size(0), weight.size(0), rows.size(1), rows.element_size(), rows.element_size());
  });
  return product(rows, weight.t());
}

void input_gradient(at::Tensor to, const at::Tensor& dlogits, const at::Tensor& weight) {
  const profile::Scope scope(profile::Phase::backward, "head, input gradient", [&] {
    return product_work({}, dlogits.size(0), weight.size(1), weight.size(0), to.element_size(), to.element_size());
  });
  product_into(to, dlogits, weight);
}

void weight_gradient(const at::Tensor& to, const at::Tensor& dlogits, const at::Tensor& rows, bool accumulate) {
  const profile::Scope scope(profile::Phase::backward, "head, weight gradient", [&] {
    return product_work({}, dlogits.size(1), rows.size(1), rows.size(0), rows.element_size(), to.element_size(),
                        accumulate);
  });
  add_product(to, dlogits.t(), rows, accumulate);
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(Context* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& labels, double scale, double z_loss, double soft_cap, int64_t z_part,
                            int64_t sink, bool gradient) {
    const memory::PurposeScope purpose(memory::Purpose::loss);
    const int64_t tokens = hidden.size(0), vocab = weight.size(0);
    check_labels(labels, vocab);
    const auto type = compute_type(hidden.scalar_type());
    at::Tensor losses = at::zeros({tokens}, hidden.options().dtype(type)), dhidden;
    const at::Tensor z = z_loss > 0 ? at::zeros_like(losses) : at::Tensor();
    if (gradient) dhidden = at::empty_like(hidden);
    context->saved_data["sink"] = sink;
    std::optional<GradientTarget> dweight;
    if (gradient && sink != 0) dweight = sink_of(context)->target();
    if (dweight && tokens == 0 && !dweight->accumulate) dweight->buffer.zero_();
    const int64_t step = describe::loss_rows_per_chunk(tokens, vocab, hidden.element_size());
    // Added chunk by chunk, a gradient in bf16 would be rounded as often as there are chunks, and stop growing.
    at::Tensor sum;
    const bool rounds = dweight && tokens > step && dweight->buffer.scalar_type() != type;
    if (rounds) sum = at::empty(weight.sizes(), weight.options().dtype(type));
    for (int64_t first = 0; first < tokens; first += step) {
      const int64_t count = std::min(step, tokens - first);
      const at::Tensor rows = hidden.narrow(0, first, count);
      at::Tensor logits = logits_of(rows, weight);
      const auto chunk = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, first, count) : t; };
      cross_entropy_rows(logits, chunk(labels), {scale, z_loss, soft_cap}, gradient, chunk(losses), chunk(z));
      if (!gradient) continue;
      input_gradient(dhidden.narrow(0, first, count), logits, weight);
      if (rounds)
        weight_gradient(sum, logits, rows, first > 0);
      else if (dweight)
        weight_gradient(dweight->buffer, logits, rows, dweight->accumulate || first > 0);
    }
    if (rounds && dweight->accumulate)
      dweight->buffer.add_(sum);
    else if (rounds)
      dweight->buffer.copy_(sum);
    if (gradient) context->save_for_backward({dhidden});
    // In double, so that what is reported does not depend on how the batch was cut.
    at::Tensor total = losses.to(at::kDouble).sum() * scale;
    if (z.defined()) {
      const at::Tensor share = z.to(at::kDouble).sum() * (scale * z_loss);
      if (z_part != 0) *reinterpret_cast<double*>(z_part) = share.item<double>();
      total = total + share;
    }
    return total;
  }

  static Gradients backward(Context* context, Gradients gradients) {
    const double upstream = gradients[0].item<double>();
    GradientSink* sink = sink_of(context);
    TRIREME_CHECK(sink == nullptr || upstream == 1.0,
                  "the loss was multiplied by {} after the weight's gradient had been made; give that as its scale",
                  upstream);
    if (sink != nullptr) sink->delivered();
    const at::Tensor dhidden = context->get_saved_variables()[0];
    return {upstream == 1.0 ? dhidden : dhidden * upstream, {}, {}, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const Weight& weight, const at::Tensor& labels, double scale,
                                double z_loss, double* z_part, double soft_cap) {
  const bool gradient = at::GradMode::is_enabled() && hidden.requires_grad();
  if (z_part != nullptr) *z_part = 0;
  return LinearCrossEntropy::apply(hidden.contiguous(), weight.value, labels.contiguous(), scale, z_loss, soft_cap,
                                   reinterpret_cast<int64_t>(z_part), pointer(weight.sink), gradient);
}

at::Tensor token_losses(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, double soft_cap) {
  const at::NoGradGuard no_grad;
  const memory::PurposeScope purpose(memory::Purpose::loss);
  const int64_t tokens = hidden.size(0), vocab = weight.size(0);
  check_labels(labels, vocab);
  at::Tensor losses = at::zeros({tokens}, hidden.options().dtype(compute_type(hidden.scalar_type())));
  const int64_t step = describe::loss_rows_per_chunk(tokens, vocab, hidden.element_size());
  for (int64_t first = 0; first < tokens; first += step) {
    const int64_t count = std::min(step, tokens - first);
    at::Tensor logits = logits_of(hidden.narrow(0, first, count), weight);
    cross_entropy_rows(logits, labels.narrow(0, first, count), {.soft_cap = soft_cap}, false,
                       losses.narrow(0, first, count), {});
  }
  return losses;
}

}  // namespace trireme::ops
