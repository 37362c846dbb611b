// Parity with transformers' Llama, Qwen 2, Qwen 3, Mistral and GPT-2 from identical weights: logits, loss, every
// gradient, ten AdamW losses and norms, the weights at the end; at step 1, and again from the weights and moments of
// step 10.
//
// Measure of a gradient: |a-b| <= tol * max(|a|, 1e-3 |g| / sqrt(number of tensors)), |.| the norm of a tensor and |g|
// that of all gradients; tol 1e-10 in fp64, 1e-5 in fp32.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "models/model.h"
#include "nn/recompute.h"
#include "ops/dispatch.h"
#include "optim/adamw.h"
#include "optim/gradient_norm.h"

namespace trireme::models {
namespace {

// The rows of oracle_models.py.
struct Case {
  const char* name;
  at::ScalarType dtype;
  bool tied;
  int64_t heads, kv_heads, head_dim;
  const char* rope = "default";
  const char* family = "llama";
  int64_t window = 0;
};
constexpr Case kCases[] = {{"fp64", at::kDouble, false, 4, 2, 8},
                           {"fp32", at::kFloat, false, 4, 2, 8},
                           {"fp64_tied", at::kDouble, true, 3, 3, 16},
                           {"fp32_tied", at::kFloat, true, 3, 3, 16},
                           {"fp64_scaled", at::kDouble, false, 6, 1, 10, "llama3"},
                           {"fp64_linear", at::kDouble, false, 4, 2, 8, "linear"},
                           {"fp64_ntk", at::kDouble, false, 4, 2, 8, "ntk"},
                           {"fp64_yarn", at::kDouble, false, 2, 2, 18, "yarn"},
                           {"fp64_qwen2", at::kDouble, true, 4, 2, 8, "default", "qwen2"},
                           {"fp32_qwen2", at::kFloat, false, 4, 2, 8, "default", "qwen2"},
                           {"fp64_qwen3", at::kDouble, false, 4, 2, 10, "default", "qwen3"},
                           {"fp32_qwen3", at::kFloat, true, 4, 1, 10, "default", "qwen3"},
                           {"fp64_mistral", at::kDouble, false, 4, 2, 8, "default", "mistral", 7},
                           {"fp32_mistral", at::kFloat, false, 4, 2, 8, "default", "mistral", 5},
                           {"fp64_gpt", at::kDouble, true, 4, 4, 9, "default", "gpt"},
                           {"fp32_gpt", at::kFloat, true, 4, 4, 9, "default", "gpt"},
                           {"fp64_gpt_free_head", at::kDouble, false, 3, 3, 12, "default", "gpt"}};

describe::ModelShape shape_of(const Case& c) {
  const std::string_view family = c.family, rope = c.rope;
  describe::ModelShape shape;
  shape.architecture = family == "gpt" ? "gpt" : "llama";
  shape.qkv_bias = family == "qwen2";
  shape.qk_norm = family == "qwen3";
  shape.sliding_window = c.window;
  shape.layers = 3;
  shape.hidden = 36;
  shape.heads = c.heads;
  shape.kv_heads = c.kv_heads;
  shape.head_dim = c.head_dim;
  shape.ffn = 52;
  shape.vocab = 101;
  shape.max_seq_len = 64;
  shape.tied = c.tied;
  shape.norm_eps = 1e-5;
  if (rope == "llama3") shape.rope_scaling = {.factor = 8, .original_max_seq_len = 16};
  if (rope == "linear") shape.rope_scaling = {.type = "linear", .factor = 3};
  if (rope == "ntk") shape.rope_scaling = {.type = "ntk", .factor = 3};
  if (rope == "yarn")
    shape.rope_scaling = {.type = "yarn", .factor = 4, .beta_fast = 8, .beta_slow = 1, .original_max_seq_len = 16};
  return shape;
}

// Runs the oracle once for all cases: importing transformers takes longer than all of them.
const std::map<std::string, at::Tensor>& oracle(const std::string& name) {
  static std::map<std::string, std::map<std::string, at::Tensor>> cache;
  static const std::filesystem::path folder = [] {
    std::string made = testing::TempDir() + "trireme_parity_XXXXXX";
    return std::filesystem::path(::mkdtemp(made.data()));
  }();
  static const bool ran = [] {
    const std::string command =
        std::string(TRIREME_PYTHON) + " " + TRIREME_SOURCE_DIR "/tests/models/oracle_models.py " + folder.string();
    const bool good = std::system(command.c_str()) == 0;
    for (const Case& c : kCases) {
      std::ifstream file(folder / (std::string(c.name) + ".pt"), std::ios::binary);
      if (!good || !file) continue;
      const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      for (const auto& item : torch::jit::pickle_load(bytes).toGenericDict())
        cache[c.name][item.key().toStringRef()] = item.value().toTensor();
    }
    std::filesystem::remove_all(folder);
    return good;
  }();
  EXPECT_TRUE(ran) << "the oracle failed";
  return cache[name];
}

class Parity : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    oracle_ = oracle(GetParam().name);
    ASSERT_FALSE(oracle_.empty()) << "the oracle failed";
    const describe::ModelShape shape = shape_of(GetParam());
    model_ = make_model(shape, GetParam().dtype);
    for (nn::Parameter* parameter : model_->parameters()) {
      const at::Tensor weight = at::zeros(parameter->shape(), GetParam().dtype);
      parameter->bind(weight, weight, at::full_like(weight, NAN));
    }
    model_->prepare(at::kCPU);
    tolerance_ = GetParam().dtype == at::kDouble ? 1e-10 : 1e-5;
  }

  const at::Tensor& expected(const std::string& name) { return oracle_.at(name); }

  at::Tensor part_of(const at::Tensor& physical, const nn::Fragment& fragment) {
    return physical.view({-1}).narrow(0, fragment.local_offset, fragment.elements()).view(fragment.size);
  }

  template <typename Visit>
  void for_each_logical(Visit visit) {
    for (nn::Parameter* parameter : model_->parameters())
      for (const nn::Fragment& fragment : parameter->fragments()) visit(*parameter, fragment);
  }

  void load_weights(const std::string& prefix) {
    for_each_logical([&](nn::Parameter& parameter, const nn::Fragment& fragment) {
      part_of(parameter.master(), fragment).copy_(expected(prefix + fragment.logical->name));
    });
  }

  double run_backward(int64_t step, config::Recompute recompute = config::Recompute::none) {
    for (nn::Parameter* parameter : model_->parameters()) parameter->expect_gradients(1, {});
    const at::Tensor labels = expected("labels")[step].contiguous();
    const double valid = labels.ne(-100).sum().item<double>();
    const at::Tensor tokens = expected("tokens")[step].contiguous();
    Pass pass = make_pass(tokens.size(0), tokens.size(1), at::kCPU);
    pass.recompute = recompute;
    const at::Tensor value = loss(*model_, tokens, labels, pass, {.scale = 1 / valid});
    value.backward();
    for (nn::Parameter* parameter : model_->parameters()) EXPECT_TRUE(parameter->complete()) << parameter->name();
    return value.item<double>();
  }

  // A bias added to every key moves all scores of a query alike, which the softmax does not see.
  bool zero_in_theory(const nn::LogicalTensor& tensor) const {
    return model_->shape().is_gpt() && tensor.name.ends_with("attention.k.bias");
  }
  // Rounding, as a share of the norm of all gradients.
  double zero_bound() const { return GetParam().dtype == at::kDouble ? 1e-15 : 5e-8; }

  void compare_gradients(const std::string& prefix) {
    double squares = 0;
    int64_t tensors = 0;
    for_each_logical([&](nn::Parameter&, const nn::Fragment& fragment) {
      squares += expected(prefix + fragment.logical->name).to(at::kDouble).square().sum().item<double>();
      ++tensors;
    });
    const double floor = 1e-3 * std::sqrt(squares) / std::sqrt(static_cast<double>(tensors));
    for_each_logical([&](nn::Parameter& parameter, const nn::Fragment& fragment) {
      const at::Tensor a = expected(prefix + fragment.logical->name).to(at::kDouble),
                       b = part_of(parameter.gradient(), fragment).to(at::kDouble);
      if (zero_in_theory(*fragment.logical)) {
        const double zero = zero_bound() * std::sqrt(squares);
        EXPECT_LE(a.norm().item<double>(), zero) << prefix << fragment.logical->name;
        EXPECT_LE(b.norm().item<double>(), zero) << prefix << fragment.logical->name;
        return;
      }
      const double difference = (a - b).norm().item<double>(), size = a.norm().item<double>();
      EXPECT_LE(difference, tolerance_ * std::max(size, floor))
          << prefix << fragment.logical->name << " of norm " << size;
    });
  }

  // Of a gradient that is zero in theory, AdamW divides rounding by rounding: in fp32 such a weight goes any way, but
  // no further than `reach`, the learning rates of its steps, from where it was on either side.
  void compare_end(double tolerance, double reach) {
    for_each_logical([&](nn::Parameter& parameter, const nn::Fragment& fragment) {
      const std::string& name = fragment.logical->name;
      const at::Tensor a = expected("end.weight." + name).to(at::kDouble),
                       b = part_of(parameter.master(), fragment).to(at::kDouble);
      if (parameter.dtype() == at::kFloat && zero_in_theory(*fragment.logical))
        EXPECT_LE((a - b).abs().max().item<double>(), 2 * reach) << name;
      else
        EXPECT_LE((a - b).norm().item<double>(), tolerance * a.norm().item<double>()) << name;
    });
  }

  void compare_logits(int64_t step) {
    const at::NoGradGuard no_grad;
    const at::Tensor a = expected("step" + std::to_string(step) + ".logits").to(at::kDouble),
                     b = logits(*model_, expected("tokens")[step].contiguous()).to(at::kDouble);
    EXPECT_LE((a - b).norm().item<double>(), tolerance_ * a.norm().item<double>());
  }

  std::map<std::string, at::Tensor> oracle_;
  std::unique_ptr<Model> model_;
  double tolerance_ = 0;
};

TEST_P(Parity, LogitsLossAndEveryGradientAtStepOne) {
  load_weights("step0.weight.");
  compare_logits(0);
  const double expected_loss = expected("losses")[0].item<double>();
  EXPECT_NEAR(run_backward(0), expected_loss, tolerance_ * expected_loss);
  compare_gradients("step0.grad.");
}

TEST_P(Parity, RecomputationGivesTheSameBits) {
  load_weights("step0.weight.");
  const double plain = run_backward(0);
  std::vector<at::Tensor> gradients;
  for (nn::Parameter* parameter : model_->parameters()) gradients.push_back(parameter->gradient().clone());
  const std::vector<nn::Parameter*> parameters = model_->parameters();
  for (const auto recompute : {config::Recompute::selective, config::Recompute::full}) {
    for (nn::Parameter* parameter : parameters) parameter->gradient().fill_(NAN);
    EXPECT_EQ(run_backward(0, recompute), plain);
    for (size_t i = 0; i < parameters.size(); ++i)
      EXPECT_TRUE(parameters[i]->gradient().equal(gradients[i]))
          << parameters[i]->name() << ", " << config::name_of(recompute);
  }
}

// Zero in theory, it must be rounding here, and no other tensor's gradient may be: a bias that is not connected would
// pass the measure of the others.
TEST_P(Parity, KeyBiasHasAGradientOfZero) {
  if (shape_of(GetParam()).architecture != "gpt") GTEST_SKIP() << "rotary positions turn the bias of each key";
  load_weights("step0.weight.");
  run_backward(0);
  double total = 0;
  for_each_logical([&](nn::Parameter& parameter, const nn::Fragment&) {
    total = std::max(total, parameter.gradient().norm().item<double>());
  });
  int64_t checked = 0;
  for_each_logical([&](nn::Parameter& parameter, const nn::Fragment& fragment) {
    const double norm = part_of(parameter.gradient(), fragment).norm().item<double>();
    if (!zero_in_theory(*fragment.logical)) {
      EXPECT_GT(norm, 1e-4 * total) << fragment.logical->name;
      return;
    }
    ++checked;
    EXPECT_GT(norm, 0) << fragment.logical->name;
    EXPECT_LE(norm, zero_bound() * total) << fragment.logical->name;
  });
  EXPECT_EQ(checked, 3);
}

TEST_P(Parity, TenAdamwSteps) {
  load_weights("step0.weight.");
  config::OptimizerConfig config;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.eps = 1e-8;
  config.weight_decay = 0.1;
  optim::Adamw optimizer(model_->parameters(), config);
  // Differences grow with each update; ten of them stay within ten times the bound of one.
  for (int64_t step = 0; step < 10; ++step) {
    const double got = run_backward(step), wanted = expected("losses")[step].item<double>();
    EXPECT_NEAR(got, wanted, 10 * tolerance_ * wanted) << "loss of step " << step;
    const optim::GradientNorm norm = optim::gradient_norm(model_->parameters(), *comm::Communicator::solo("shard"));
    const double wanted_norm = expected("norms")[step].item<double>();
    EXPECT_NEAR(norm.total, wanted_norm, 10 * tolerance_ * wanted_norm) << "norm of step " << step;
    optimizer.step(3e-3, optim::clip_coefficient(norm.total, 1.0));
  }
  compare_end(10 * tolerance_, 10 * 3e-3);
}

TEST_P(Parity, StepTenFromTheirWeightsAndMoments) {
  load_weights("step9.weight.");
  optim::Adamw optimizer(model_->parameters(), config::OptimizerConfig{.lr = 3e-3});
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    for (const nn::Fragment& fragment : optimizer.parameters()[i]->fragments()) {
      part_of(optimizer.moments()[i].exp_avg, fragment).copy_(expected("step9.exp_avg." + fragment.logical->name));
      part_of(optimizer.moments()[i].exp_avg_sq, fragment)
          .copy_(expected("step9.exp_avg_sq." + fragment.logical->name));
    }
  }
  optimizer.set_updates(9);
  compare_logits(9);
  const double expected_loss = expected("losses")[9].item<double>();
  EXPECT_NEAR(run_backward(9), expected_loss, tolerance_ * expected_loss);
  compare_gradients("step9.grad.");
  const optim::GradientNorm norm = optim::gradient_norm(model_->parameters(), *comm::Communicator::solo("shard"));
  optimizer.step(3e-3, optim::clip_coefficient(norm.total, 1.0));
  compare_end(tolerance_, 3e-3);
}

// The row of an embedding that no token of the batch uses has a gradient of zero, exactly; a tied one is used by the
// head.
TEST_P(Parity, UnusedEmbeddingRowsHaveNoGradient) {
  load_weights("step0.weight.");
  run_backward(0);
  const at::Tensor used = at::bincount(expected("tokens")[0].reshape({-1}), {}, 101).gt(0);
  nn::Parameter* embedding = nullptr;
  for (nn::Parameter* parameter : model_->parameters())
    if (parameter->name() == "embed.weight") embedding = parameter;
  ASSERT_NE(embedding, nullptr);
  const at::Tensor rows = embedding->gradient().abs().sum(1);
  if (GetParam().tied) {
    EXPECT_GT(rows.min().item<double>(), 0.0);
    return;
  }
  EXPECT_EQ(rows.masked_select(used.logical_not()).sum().item<double>(), 0.0);
  EXPECT_GT(rows.masked_select(used).min().item<double>(), 0.0);
}

INSTANTIATE_TEST_SUITE_P(Transformers, Parity, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace trireme::models
