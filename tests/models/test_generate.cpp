// Sampling: the cache gives what the whole sequence gives, and the options mean what they say.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "models/generate.h"
#include "ops/dispatch.h"

namespace trireme::models {
namespace {

std::unique_ptr<Model> small_model(at::ScalarType dtype = at::kDouble) {
  describe::ModelShape shape;
  shape.layers = 2;
  shape.hidden = 24;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 6;
  shape.ffn = 40;
  shape.vocab = 29;
  shape.max_seq_len = 32;
  auto model = make_model(shape, dtype);
  for (nn::Parameter* parameter : model->parameters()) {
    const at::Tensor weight = at::zeros(parameter->shape(), ops::compute_type(dtype));
    for (const nn::Fragment& fragment : parameter->fragments()) {
      nn::LogicalTensor logical = *fragment.logical;
      logical.init.standard_deviation *= 20;  // far from uniform, so that a wrong position shows
      nn::initialize(logical, 0, weight.view({-1}).narrow(0, fragment.local_offset, fragment.elements()), 3);
    }
    parameter->bind(weight.scalar_type() == dtype ? weight : weight.to(dtype), weight, at::zeros_like(weight));
  }
  model->prepare(at::kCPU);
  return model;
}

TEST(Generate, GreedyEqualsTheWholeSequenceAtEachLength) {
  const auto model = small_model();
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5};
  SamplingOptions options;
  options.temperature = 0;
  options.max_tokens = 20;
  const std::vector<int32_t> got = generate(*model, prompt, options);
  ASSERT_EQ(got.size(), 20u);
  const at::NoGradGuard no_grad;
  std::vector<int64_t> sequence(prompt.begin(), prompt.end());
  for (const int32_t token : got) {
    const at::Tensor tokens = at::tensor(sequence, at::kLong).view({1, -1});
    EXPECT_EQ(logits(*model, tokens)[0][-1].argmax().item<int64_t>(), token) << "at length " << sequence.size();
    sequence.push_back(token);
  }
}

TEST(Generate, SameSeedSameSampleAndOtherSeedAnother) {
  const auto model = small_model();
  const std::vector<int32_t> prompt = {2};
  SamplingOptions options;
  options.temperature = 2;
  options.max_tokens = 25;
  const auto a = generate(*model, prompt, options);
  EXPECT_EQ(a, generate(*model, prompt, options));
  options.seed = 1;
  EXPECT_NE(a, generate(*model, prompt, options));
}

TEST(Generate, EndsAtTheLongestSequence) {
  const auto model = small_model();
  SamplingOptions options;
  options.temperature = 0;
  options.max_tokens = 1000;
  const std::vector<int32_t> prompt = {1, 2};
  EXPECT_EQ(generate(*model, prompt, options).size(), 31u);  // the token after position 31 is still drawn
  EXPECT_THROW(generate(*model, std::vector<int32_t>(32, 1), options), InputError);
  EXPECT_THROW(generate(*model, std::vector<int32_t>{}, options), InputError);
}

TEST(Generate, CallbackAndEndOfTextEndIt) {
  const auto model = small_model();
  SamplingOptions options;
  options.temperature = 0;
  options.max_tokens = 10;
  const std::vector<int32_t> prompt = {7};
  const auto all = generate(*model, prompt, options);
  int calls = 0;
  EXPECT_EQ(generate(*model, prompt, options, [&](int32_t) { return ++calls < 3; }).size(), 3u);
  options.end_of_text = all[4];
  const auto cut = generate(*model, prompt, options);
  EXPECT_LE(cut.size(), 4u);
  EXPECT_TRUE(std::equal(cut.begin(), cut.end(), all.begin()));
}

TEST(Sample, OptionsCutTheDistribution) {
  const std::vector<float> logits = {0.0f, 2.0f, 1.0f, -1.0f};
  const auto seen = [&](SamplingOptions options) {
    std::map<int64_t, int> counts;
    for (int i = 0; i < 1000; ++i) ++counts[sample(logits, options, (i + 0.5) / 1000)];
    return counts;
  };
  SamplingOptions options;
  options.temperature = 1;
  // Frequencies follow the softmax.
  const auto all = seen(options);
  ASSERT_EQ(all.size(), 4u);
  const double total = std::exp(0.0) + std::exp(2.0) + std::exp(1.0) + std::exp(-1.0);
  EXPECT_NEAR(all.at(1), 1000 * std::exp(2.0) / total, 2);
  EXPECT_NEAR(all.at(3), 1000 * std::exp(-1.0) / total, 2);
  options.top_k = 2;
  EXPECT_EQ(seen(options).size(), 2u);
  options.top_k = 0;
  options.top_p = 0.5;  // the most likely token alone has 0.64
  EXPECT_EQ(seen(options).size(), 1u);
  options.top_p = 0.7;
  EXPECT_EQ(seen(options).size(), 2u);
  options.top_p = 1;
  options.temperature = 0;
  EXPECT_EQ(seen(options), (std::map<int64_t, int>{{1, 1000}}));
}

}  // namespace
}  // namespace trireme::models
