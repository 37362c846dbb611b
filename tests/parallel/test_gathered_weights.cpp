// Weights that are there only while a block runs: what autograd has kept of them (whole, transposed, sliced) reads the
// right values in backward, and reading one that is not there ends the process.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/model.h"
#include "parallel/data_parallel.h"

namespace trireme::parallel {
namespace {

constexpr int64_t kLayers = 5, kHidden = 8, kVocab = 11;

// Blocks of plain ATen operations, which keep views of the weight for backward. Weights get no gradient here.
class Plain : public models::Model {
 public:
  Plain(const describe::ModelShape& shape, bool misplaced) : Model(shape, at::kDouble), misplaced_(misplaced) {
    const auto matrix = [&](const std::string& name, int64_t rows) {
      return add_parameter({{name, {rows, kHidden}, {nn::Init::Kind::truncated_normal, 0.3}, true}});
    };
    embedding_ = matrix("embed.weight", kVocab);
    units_.push_back({"embed", {embedding_}});
    for (int64_t i = 0; i < kLayers; ++i) {
      blocks_.push_back(matrix("blocks." + std::to_string(i) + ".weight", kHidden));
      units_.push_back({"blocks." + std::to_string(i), {blocks_.back()}});
    }
    head_ = matrix("head.weight", kVocab);
    units_.push_back({"head", {head_}});
  }
  void prepare(at::Device /*device*/) override {}
  at::Tensor embed(const at::Tensor& tokens, const models::Pass& /*pass*/) override {
    input = at::embedding(embedding_->weight().value, tokens).detach().requires_grad_();
    return input;
  }
  at::Tensor block(int64_t index, const at::Tensor& x, const models::Pass& /*pass*/, ops::KeyValueCache*) override {
    const int64_t own = misplaced_ && index == 3 ? 1 : index;
    const at::Tensor weight = blocks_[static_cast<size_t>(own)]->weight().value;
    return formula(x, weight);
  }
  static at::Tensor formula(const at::Tensor& x, const at::Tensor& weight) {
    const at::Tensor whole = at::linear(x, weight).tanh(), turned = at::matmul(x, weight).tanh();
    const at::Tensor sliced = at::linear(x, weight.narrow(0, 2, 4)).repeat({1, 1, 2});
    return whole + 0.5 * turned + sliced * turned;
  }
  at::Tensor final_norm(const at::Tensor& x) override { return at::linear(x, head_->weight().value); }
  nn::Parameter& head() override { return *head_; }

  at::Tensor input;
  std::vector<nn::Parameter*> blocks_;

 private:
  bool misplaced_;
  nn::Parameter *embedding_ = nullptr, *head_ = nullptr;
};

describe::ModelShape shape() {
  describe::ModelShape shape;
  shape.architecture = "plain";
  shape.layers = kLayers;
  shape.hidden = kHidden;
  shape.vocab = kVocab;
  return shape;
}

struct Trained {
  explicit Trained(DataParallelOptions options, bool misplaced = false)
      : model(shape(), misplaced), parallel(model, *alone, *alone, at::kCPU, options) {
    parallel.initialize(3);
  }
  // The gradient of the input; twice, so that places are taken in an order that was learned.
  at::Tensor gradient(models::Pass pass = {}) {
    const at::Tensor tokens = at::arange(6, at::kLong).view({2, 3});
    for (int turn = 0; turn < 2; ++turn) {
      models::forward(model, tokens, pass).square().sum().backward();
      result = model.input.grad().clone();
    }
    return result;
  }
  std::shared_ptr<comm::Communicator> alone = comm::Communicator::solo("shard");
  Plain model;
  DataParallel parallel;
  at::Tensor result;
};

DataParallelOptions gathered(int64_t prefetch) { return {.level = Level::parameters, .prefetch = prefetch}; }

TEST(GatheredWeights, WhatAutogradKeepsOfThemIsExact) {
  const at::Tensor expected = Trained({}).gradient();
  EXPECT_GT(expected.abs().max().item<double>(), 1e-3);
  models::Pass again;
  again.recompute = config::Recompute::full;
  models::Pass in_groups = again;
  in_groups.recompute_blocks = 3;
  for (const int64_t prefetch : {0, 1, 2, 9}) {
    EXPECT_TRUE(Trained(gathered(prefetch)).gradient().equal(expected)) << prefetch;
    EXPECT_TRUE(Trained(gathered(prefetch)).gradient(again).equal(expected)) << prefetch;
    EXPECT_TRUE(Trained(gathered(prefetch)).gradient(in_groups).equal(expected)) << prefetch;
  }
}

TEST(GatheredWeights, AStepSeesWhatAnUpdateWrote) {
  Trained whole({}), divided(gathered(1));
  for (Trained* each : {&whole, &divided}) {
    static_cast<void>(each->gradient());
    for (nn::Parameter* parameter : each->model.parameters()) at::Tensor(parameter->master()).mul_(0.5);
    each->parallel.refresh_weights();
  }
  EXPECT_TRUE(divided.gradient().equal(whole.gradient()));
}

TEST(GatheredWeightsDeathTest, AWeightThatIsNotThereCannotBeRead) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  Trained trained(gathered(0));
  static_cast<void>(trained.gradient());
  // After backward the first block's weight is in the only place of blocks.
  EXPECT_TRUE(trained.model.blocks_[0]->value().isfinite().all().item<bool>());
  EXPECT_DEATH(std::fprintf(stderr, "%f", *trained.model.blocks_[1]->value().const_data_ptr<double>()), "");
}

TEST(GatheredWeights, AWeightOfAnotherBlockIsRefusedByName) {
  Trained trained(gathered(1), /*misplaced=*/true);
  try {
    static_cast<void>(trained.gradient());
    FAIL() << "not refused";
  } catch (const InternalError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("a weight of the unit blocks.1 is read by block 3"), std::string::npos) << text;
  }
  EXPECT_NO_THROW(static_cast<void>(Trained({}, /*misplaced=*/true).gradient()));
}

}  // namespace
}  // namespace trireme::parallel
