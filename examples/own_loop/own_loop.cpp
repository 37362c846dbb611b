// A training loop of one's own around a plain torch::nn::Module, data-parallel at any level:
//   own_loop --workers 2 --level parameters
//
// The module is LibTorch's own encoder and knows nothing of Trireme. The task: which token occurs most often in a
// sequence of 15 (Samples below).
#include <torch/torch.h>
#include <trireme/base/error.h>
#include <trireme/cli/run_workers.h>
#include <trireme/comm/mesh.h>
#include <trireme/parallel/foreign_module.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace {

namespace comm = trireme::comm;
namespace parallel = trireme::parallel;

constexpr int64_t kTokens = 5, kLength = 15, kWidth = 32, kBatch = 48, kSteps = 80;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(kTokens, kWidth));
    const auto layer = torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(2 * kWidth).dropout(0);
    encoder = register_module("encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                                             torch::nn::TransformerEncoderLayer(layer), 3)));
    head = register_module("head", torch::nn::Linear(kWidth, kTokens));
  }
  // tokens [batch, length] -> scores [batch, tokens]
  torch::Tensor forward(const torch::Tensor& tokens) {
    return head(encoder(embedding(tokens).transpose(0, 1)).mean(0));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::TransformerEncoder encoder{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

// Sample i is a function of i alone, so what is learned does not depend on who computes it.
std::pair<torch::Tensor, torch::Tensor> samples(int64_t first, int64_t count) {
  const torch::Tensor tokens = torch::empty({count, kLength}, torch::kLong);
  const torch::Tensor most = torch::empty({count}, torch::kLong);
  auto* token = tokens.mutable_data_ptr<int64_t>();
  auto* answer = most.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    uint64_t state = static_cast<uint64_t>(first + i) * 0x9e3779b97f4a7c15U + 1;
    int64_t counts[kTokens] = {};
    for (int64_t j = 0; j < kLength; ++j) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      *token = static_cast<int64_t>((state >> 33) % kTokens);
      ++counts[*token++];
    }
    answer[i] = std::max_element(counts, counts + kTokens) - counts;
  }
  return {tokens, most};
}

struct Options {
  int workers = 1;
  parallel::Level level = parallel::Level::parameters;
  int64_t shard_size = -1;  // ranks that divide; -1: all
  std::string save;
};

void train(const Options& options, const std::shared_ptr<comm::Communicator>& world) {
  // Level none divides among one; the other ranks hold the same.
  const int64_t shards = options.level == parallel::Level::none ? 1 : options.shard_size;
  const comm::Mesh mesh(world, {.shard = shards, .replicate = shards == -1 ? 1 : -1});
  const int64_t ranks = world->size(), rank = world->rank();
  const bool first = rank == 0;

  torch::manual_seed(1);  // rank 0's weights count
  Net net;
  parallel::ShardedModuleOptions sharding;
  sharding.level = options.level;
  sharding.units = parallel::submodules_of_type<torch::nn::TransformerEncoderLayerImpl>(*net);
  parallel::ShardedModule sharded(net.ptr(), mesh.axis("shard"), mesh.axis("replicate"), sharding);
  if (first) std::printf("%s", sharded.table().c_str());

  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(3e-3));
  for (int64_t step = 0; step < kSteps; ++step) {
    // Each rank has its own part of the batch; gradients are summed, so the loss is divided by all of it.
    const int64_t begin = kBatch * rank / ranks, end = kBatch * (rank + 1) / ranks;
    const auto [tokens, most] = samples(step * kBatch + begin, end - begin);
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(net(tokens), most,
                                             torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum)) /
        kBatch;
    loss.backward();
    const double norm = sharded.clip_gradients(1.0);
    sharded.step(optimizer);
    const double all = world->all_reduce_scalar(loss.item<double>());
    if (first && step % 10 == 9)
      std::printf("step %3lld  loss %.6f  gradient norm %.4f\n", static_cast<long long>(step + 1), all, norm);
  }

  net->eval();
  const torch::NoGradGuard no_grad;
  const auto [tokens, most] = samples(1'000'000, 500);
  const torch::Tensor scores = net(tokens);  // at level parameters all ranks have to
  if (first)
    std::printf("accuracy on 500 others: %.3f\n", scores.argmax(1).eq(most).to(torch::kDouble).mean().item<double>());
  if (options.save.empty()) return;
  sharded.save(options.save);
  if (!first) return;
  Net plain;
  torch::load(plain, options.save);
  plain->eval();
  std::printf("a plain module that loads %s differs by %.1e\n", options.save.c_str(),
              (plain(tokens) - scores).abs().max().item<double>());
}

Options parse(int argc, char** argv) {
  const std::map<std::string, parallel::Level> levels = {{"none", parallel::Level::none},
                                                         {"optimizer", parallel::Level::optimizer},
                                                         {"gradients", parallel::Level::gradients},
                                                         {"parameters", parallel::Level::parameters}};
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--workers" && std::atoi(value.c_str()) > 0) {
      options.workers = std::atoi(value.c_str());
    } else if (name == "--shard-size" && std::atoi(value.c_str()) > 0) {
      options.shard_size = std::atoi(value.c_str());
    } else if (name == "--level" && levels.contains(value)) {
      options.level = levels.at(value);
    } else if (name == "--save" && !value.empty()) {
      options.save = value;
    } else {
      std::fprintf(stderr,
                   "usage: own_loop [--workers N] [--level none|optimizer|gradients|parameters] "
                   "[--shard-size N] [--save FILE]\n");
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  return trireme::cli::run_workers(argc, argv, {.workers = options.workers, .run_dir = "runs/own_loop"},
                                   [&](const auto& world) { train(options, world); });
}
