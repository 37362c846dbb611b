#include "models/generate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"

namespace trireme::models {

int64_t sample(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto more_likely = [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.temperature <= 0) return *std::min_element(order.begin(), order.end(), more_likely);
  std::sort(order.begin(), order.end(), more_likely);
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size())
    order.resize(static_cast<size_t>(options.top_k));
  std::vector<double> weights;
  double total = 0;
  for (const int64_t id : order) {
    const double difference = double{logits[static_cast<size_t>(id)]} - logits[static_cast<size_t>(order[0])];
    weights.push_back(std::exp(difference / options.temperature));
    total += weights.back();
  }
  // The nucleus (Holtzman et al., arXiv:1904.09751): the first tokens whose sum reaches top_p, at least one.
  double kept = 0;
  size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) kept += weights[count++];
  double rest = uniform * kept;
  for (size_t i = 0; i < count; ++i) {
    rest -= weights[i];
    if (rest <= 0) return order[i];
  }
  return order[count - 1];
}

void check_prompt(const Model& model, int64_t tokens) {
  if (tokens == 0) throw_input("a prompt needs at least one token");
  if (tokens >= model.shape().max_seq_len)
    throw_input("the prompt has {} tokens; the model's longest sequence is {}, so at most {} fit", tokens,
                model.shape().max_seq_len, model.shape().max_seq_len - 1);
}

std::vector<int32_t> generate(Model& model, std::span<const int32_t> prompt, const SamplingOptions& options,
                              const std::function<bool(int32_t)>& on_token) {
  const at::NoGradGuard no_grad;
  const auto given = static_cast<int64_t>(prompt.size());
  check_prompt(model, given);
  const int64_t capacity = given + std::min(model.shape().max_seq_len - given, options.max_tokens);
  const at::Device device = model.head().value().device();
  Cache cache = model.make_cache(1, capacity);
  const random::Key key = random::make_key(options.seed, "sampling");

  std::vector<int64_t> next(prompt.begin(), prompt.end());
  std::vector<int32_t> result;
  int64_t position = 0;
  while (static_cast<int64_t>(result.size()) < options.max_tokens &&
         given + static_cast<int64_t>(result.size()) < capacity + 1) {
    const auto seq = static_cast<int64_t>(next.size());
    if (position + seq > capacity) break;
    const at::Tensor tokens = at::tensor(next, at::kLong).view({1, seq}).to(device);
    const Pass pass = make_pass(1, seq, device, position);
    at::Tensor x = model.embed(tokens, pass);
    for (int64_t i = 0; i < model.shape().layers; ++i) x = model.block(i, x, pass, &cache[static_cast<size_t>(i)]);
    const at::Tensor last = model.final_norm(x.narrow(1, seq - 1, 1)).reshape({1, -1});
    const at::Tensor row = ops::soft_capped(ops::linear(last, model.head().weight()), model.shape().logit_softcap)
                               .to(at::kCPU, at::kFloat)
                               .contiguous();
    position += seq;
    if (!row.isfinite().all().item<bool>())
      throw_input("the model's scores are not finite after {} tokens; its weights are broken", position);
    const int64_t vocab = options.vocab > 0 ? std::min(options.vocab, row.numel()) : row.numel();
    const std::span<const float> scores(row.data_ptr<float>(), static_cast<size_t>(vocab));
    const auto id = static_cast<int32_t>(sample(scores, options, random::uniform(key, result.size())));
    if (id == options.end_of_text) break;
    result.push_back(id);
    if (on_token && !on_token(id)) break;
    next = {id};
  }
  return result;
}

}  // namespace trireme::models
