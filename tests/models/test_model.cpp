// What every architecture keeps: documents that do not see each other, dropout by sample, one token at a time as all at
// once, and for backward what its description says.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "describe/kept_activations.h"
#include "models/model.h"
#include "ops/linear.h"

namespace trireme::models {
namespace {

// Counts the bytes of tensors that live.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = static_cast<size_t*>(std::aligned_alloc(64, (bytes + 64 + 63) / 64 * 64));
    *block = bytes;
    live += static_cast<int64_t>(bytes);
    return {reinterpret_cast<char*>(block) + 64, block, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  static inline std::atomic<int64_t> live{0};

 private:
  static void release(void* block) {
    live -= static_cast<int64_t>(*static_cast<size_t*>(block));
    std::free(block);
  }
};

struct Case {
  const char* name;
  void (*change)(describe::ModelShape&);
};
const Case kCases[] = {
    {"llama", [](describe::ModelShape&) {}},
    {"qwen2", [](describe::ModelShape& s) { s.qkv_bias = true; }},
    {"qwen3", [](describe::ModelShape& s) { s.qk_norm = true; }},
    {"mistral", [](describe::ModelShape& s) { s.sliding_window = 5; }},
    {"gpt", [](describe::ModelShape& s) { s.architecture = "gpt", s.kv_heads = s.heads; }},
};
constexpr int64_t kVocab = 31, kEnd = 30;

class Architecture : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    describe::ModelShape shape;
    shape.layers = 3, shape.hidden = 24, shape.heads = 4, shape.kv_heads = 2, shape.head_dim = 6, shape.ffn = 40,
    shape.vocab = kVocab, shape.max_seq_len = 48;
    GetParam().change(shape);
    model_ = make_model(shape, at::kDouble);
    at::manual_seed(3);
    for (nn::Parameter* parameter : model_->parameters()) {
      const at::Tensor weight = 0.3 * at::randn(parameter->shape(), at::kDouble);
      parameter->bind(weight, weight, at::zeros_like(weight));
    }
    model_->prepare(at::kCPU);
  }

  at::Tensor logits_of(const at::Tensor& tokens, const Pass& pass) {
    const at::NoGradGuard no_grad;
    return ops::linear(forward(*model_, tokens, pass), model_->head().weight());
  }

  std::unique_ptr<Model> model_;
};

TEST_P(Architecture, DocumentsAreAsIfEachStoodAlone) {
  at::Tensor tokens = at::randint(0, kEnd, {2, 20}, at::kLong);
  tokens[0][7] = kEnd;
  tokens[0][8] = kEnd;
  tokens[1][0] = kEnd;
  tokens[1][19] = kEnd;
  const at::Tensor together = logits_of(tokens, make_document_pass(tokens, kEnd));
  const struct { int64_t row, first, length; } documents[] = {{0, 0, 7}, {0, 7, 1}, {0, 8, 12}, {1, 0, 19}, {1, 19, 1}};
  for (const auto& d : documents) {
    const at::Tensor alone = tokens.narrow(0, d.row, 1).narrow(1, d.first, d.length).contiguous();
    const at::Tensor part = together.narrow(0, d.row, 1).narrow(1, d.first, d.length);
    EXPECT_LE((logits(*model_, alone) - part).abs().max().item<double>(), 1e-12) << d.row << " " << d.first;
  }
  EXPECT_GT((logits(*model_, tokens) - together).abs().max().item<double>(), 1e-3) << "the mask changes nothing";
}

TEST_P(Architecture, TokenByTokenIsTheWholeSequence) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::randint(0, kVocab, {1, 17}, at::kLong), whole = logits(*model_, tokens);
  Cache cache = model_->make_cache(1, 17);
  int64_t at = 0;
  for (const int64_t count : {4, 1, 1, 6, 5}) {
    const Pass pass = make_pass(1, count, at::kCPU, at);
    at::Tensor x = model_->embed(tokens.narrow(1, at, count).contiguous(), pass);
    for (int64_t i = 0; i < 3; ++i) x = model_->block(i, x, pass, &cache[static_cast<size_t>(i)]);
    const at::Tensor part = ops::linear(model_->final_norm(x), model_->head().weight());
    EXPECT_LE((part - whole.narrow(1, at, count)).abs().max().item<double>(), 1e-12) << at;
    at += count;
  }
}

// A position in the order of samples is used once, so the masks of no two steps are alike, not even for the same text.
TEST_P(Architecture, DropoutFollowsThePositionInTheOrderOfSamples) {
  const at::Tensor tokens = at::randint(0, kVocab, {2, 16}, at::kLong), labels = tokens.roll(-1, 1);
  const auto loss_at = [&](std::vector<int64_t> samples, double probability, uint64_t seed = 1) {
    const at::NoGradGuard no_grad;
    Pass pass = make_pass(2, 16, at::kCPU);
    pass.dropout = {probability, seed, at::tensor(samples, at::kLong)};
    return loss(*model_, tokens, labels, pass, {}).item<double>();
  };
  EXPECT_EQ(loss_at({0, 1}, 0.2), loss_at({0, 1}, 0.2));
  EXPECT_NE(loss_at({0, 1}, 0.2), loss_at({2, 3}, 0.2)) << "the next step";
  EXPECT_NE(loss_at({0, 1}, 0.2), loss_at({0, 1}, 0.2, 2)) << "another seed";
  EXPECT_NE(loss_at({0, 1}, 0.2), loss_at({0, 1}, 0));
  EXPECT_EQ(loss_at({0, 1}, 0), loss_at({5, 6}, 0));
}

// What lives between forward and backward, beside what the loss keeps.
TEST_P(Architecture, KeepsWhatItsDescriptionSays) {
  constexpr int64_t kBatch = 2, kSeq = 15, kTokens = kBatch * kSeq;
  const at::Tensor tokens = at::randint(0, kVocab, {kBatch, kSeq}, at::kLong), labels = tokens.roll(-1, 1);
  const auto store = std::make_shared<nn::ActivationStore>(std::filesystem::path(testing::TempDir()));
  using Recompute = config::Recompute;
  const struct {
    const char* name;
    Recompute recompute;
    int64_t setting, group;
    bool offload = false;
    double dropout = 0;
  } rows[] = {{"none", Recompute::none, 1, 1},
              {"dropout", Recompute::none, 1, 1, false, 0.1},
              {"dropout, full", Recompute::full, 1, 1, false, 0.1},
              {"selective", Recompute::selective, 1, 1},
              {"full", Recompute::full, 1, 1},
              {"two together", Recompute::full, 2, 2},
              {"square root", Recompute::full, 0, 2},
              {"offloaded", Recompute::full, 1, 1, true},
              {"offloaded, two together", Recompute::full, 2, 2, true}};
  static CountingAllocator counting;
  c10::Allocator* usual = c10::GetCPUAllocator();
  std::vector<at::Tensor> expected;  // gradients, without recomputation and dropout
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    Pass pass = make_pass(kBatch, kSeq, at::kCPU);
    pass.recompute = row.recompute;
    pass.recompute_blocks = row.setting;
    pass.dropout = {row.dropout, 1, at::tensor({int64_t{0}, int64_t{1}})};
    if (row.offload) pass.offload = store;
    int64_t kept = 0;
    double value = 0;
    for (int time = 0; time < 2; ++time) {  // a window's mask is made once, and stays
      for (nn::Parameter* parameter : model_->parameters()) parameter->expect_gradients(1, {});
      c10::SetCPUAllocator(&counting, 1);
      const int64_t before = CountingAllocator::live;
      at::Tensor result = loss(*model_, tokens, labels, pass, {});
      kept = CountingAllocator::live - before;
      result.backward();
      value = result.item<double>();
      result.reset();
      c10::SetCPUAllocator(usual, 1);
    }
    describe::ModelShape shape = model_->shape();
    shape.dropout = row.dropout;
    const describe::KeptBytes described = describe::kept_activations(shape, {.tokens = kTokens,
                                                                             .seq_len = kSeq,
                                                                             .types = {8, 8},
                                                                             .recompute = row.recompute,
                                                                             .group = row.group,
                                                                             .offload = row.offload});
    // The loss keeps the gradient of its input, and its own value.
    const int64_t of_loss = kTokens * shape.hidden * 8 + 8;
    // Attention's mask of what is not seen, where blocks keep it.
    const int64_t masks = row.dropout > 0 && row.recompute == Recompute::none ? shape.layers * kSeq * kSeq : 0;
    EXPECT_EQ(kept - of_loss - masks, described.after_forward) << value;
    if (row.dropout > 0) continue;
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      const at::Tensor gradient = model_->parameters()[i]->gradient();
      if (expected.size() <= i) expected.push_back(gradient.clone());
      EXPECT_TRUE(gradient.equal(expected[i])) << model_->parameters()[i]->name();
    }
  }
  // Places in the file are used again: the inputs of three blocks.
  EXPECT_EQ(store->file_bytes(), 3 * kTokens * 24 * 8);
}

INSTANTIATE_TEST_SUITE_P(All, Architecture, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace trireme::models
