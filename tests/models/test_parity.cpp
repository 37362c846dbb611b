// Parity with transformers' Llama from identical weights: logits, loss, every gradient, ten AdamW losses and norms, the
// weights at the end; at step 1, and again from the weights and moments of step 10.
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

struct Case {
  const char* name;
  at::ScalarType dtype;
  bool tied;
  int64_t heads, kv_heads, head_dim;
  double rope_factor;
};
constexpr Case kCases[] = {{"fp64", at::kDouble, false, 4, 2, 8, 1},
                           {"fp32", at::kFloat, false, 4, 2, 8, 1},
                           {"fp64_tied", at::kDouble, true, 3, 3, 16, 1},
                           {"fp32_tied", at::kFloat, true, 3, 3, 16, 1},
                           {"fp64_scaled", at::kDouble, false, 6, 1, 10, 8}};

// Runs the oracle once per case.
const std::map<std::string, at::Tensor>& oracle(const std::string& name) {
  static std::map<std::string, std::map<std::string, at::Tensor>> cache;
  std::map<std::string, at::Tensor>& tensors = cache[name];
  if (!tensors.empty()) return tensors;
  const std::string out = testing::TempDir() + "trireme_parity_" + name + ".pt";
  const std::string command =
      std::string(TRIREME_PYTHON) + " " + TRIREME_SOURCE_DIR "/tests/models/oracle_llama.py " + name + " " + out;
  if (std::system(command.c_str()) != 0) return tensors;
  std::ifstream file(out, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (const auto& item : torch::jit::pickle_load(bytes).toGenericDict())
    tensors[item.key().toStringRef()] = item.value().toTensor();
  std::filesystem::remove(out);
  return tensors;
}

class Parity : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    oracle_ = oracle(GetParam().name);
    ASSERT_FALSE(oracle_.empty()) << "the oracle failed";
    describe::ModelShape shape;
    shape.layers = 3;
    shape.hidden = 36;
    shape.heads = GetParam().heads;
    shape.kv_heads = GetParam().kv_heads;
    shape.head_dim = GetParam().head_dim;
    shape.ffn = 52;
    shape.vocab = 101;
    shape.max_seq_len = 64;
    shape.tied = GetParam().tied;
    shape.norm_eps = 1e-5;
    if (GetParam().rope_factor != 1) shape.rope_scaling = {GetParam().rope_factor, 1.0, 4.0, 16};
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

  double run_backward(int64_t step, bool recompute = false) {
    for (nn::Parameter* parameter : model_->parameters()) parameter->expect_gradients(1, {});
    const at::Tensor labels = expected("labels")[step].contiguous();
    const double valid = labels.ne(-100).sum().item<double>();
    const at::Tensor value = loss(*model_, expected("tokens")[step].contiguous(), labels, 1 / valid, recompute);
    value.backward();
    for (nn::Parameter* parameter : model_->parameters()) EXPECT_TRUE(parameter->complete()) << parameter->name();
    return value.item<double>();
  }

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
      const double difference = (a - b).norm().item<double>(), size = a.norm().item<double>();
      EXPECT_LE(difference, tolerance_ * std::max(size, floor))
          << prefix << fragment.logical->name << " of norm " << size;
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

TEST_P(Parity, FullRecomputationGivesTheSameBits) {
  load_weights("step0.weight.");
  const double plain = run_backward(0);
  std::vector<at::Tensor> gradients;
  for (nn::Parameter* parameter : model_->parameters()) gradients.push_back(parameter->gradient().clone());
  EXPECT_EQ(run_backward(0, /*recompute=*/true), plain);
  const std::vector<nn::Parameter*> parameters = model_->parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    EXPECT_TRUE(parameters[i]->gradient().equal(gradients[i])) << parameters[i]->name();
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
    const optim::GradientNorm norm = optim::gradient_norm(model_->parameters());
    const double wanted_norm = expected("norms")[step].item<double>();
    EXPECT_NEAR(norm.total, wanted_norm, 10 * tolerance_ * wanted_norm) << "norm of step " << step;
    optimizer.step(3e-3, optim::clip_coefficient(norm.total, 1.0));
  }
  for_each_logical([&](nn::Parameter& parameter, const nn::Fragment& fragment) {
    const at::Tensor a = expected("end.weight." + fragment.logical->name).to(at::kDouble),
                     b = part_of(parameter.master(), fragment).to(at::kDouble);
    EXPECT_LE((a - b).norm().item<double>(), 10 * tolerance_ * a.norm().item<double>()) << fragment.logical->name;
  });
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
  const optim::GradientNorm norm = optim::gradient_norm(model_->parameters());
  optimizer.step(3e-3, optim::clip_coefficient(norm.total, 1.0));
  for_each_logical([&](nn::Parameter& parameter, const nn::Fragment& fragment) {
    const at::Tensor a = expected("end.weight." + fragment.logical->name).to(at::kDouble),
                     b = part_of(parameter.master(), fragment).to(at::kDouble);
    EXPECT_LE((a - b).norm().item<double>(), tolerance_ * a.norm().item<double>()) << fragment.logical->name;
  });
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
