// A plain torch::nn::Module over 2, 3 and 4 ranks, at each level, against LibTorch alone in one process.
//
// Every rank first trains the module as LibTorch does, on the whole batch, without any of ours; then its own samples
// with ShardedModule, and compares every gradient and the weights after five steps of Adam. Measure: |a-b| <= tol *
// max(|a|, 1e-3 |g| / sqrt(number of tensors)), tol 1e-10 in fp64 and 1e-5 in fp32. Ranks are real processes: this
// binary, executed again with the variables that torchrun would set.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>

#include "base/error.h"
#include "comm/mesh.h"
#include "comm/rendezvous.h"
#include "memory/caching_allocator.h"
#include "parallel/foreign_module.h"

namespace trireme::parallel {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

constexpr int64_t kBatch = 13, kSteps = 5, kIn = 7, kOut = 5, kVocab = 17, kLength = 6;

// What the tests train: all take [batch, ...] and give scores [batch, ...] of which the squared sum is the loss.
struct Net : torch::nn::Module {
  virtual Tensor forward(const Tensor& input) = 0;
  virtual Tensor input() const { return torch::randn({kBatch, kIn}); }
};

// Odd numbers of rows, a scalar, a frozen weight, integers, a layer that nothing uses, and one that is used twice.
struct Mixed final : Net {
  Mixed() {
    first = register_module("first", torch::nn::Linear(kIn, 13));
    twice = register_module("twice", torch::nn::Linear(13, 13));
    frozen = register_module("frozen", torch::nn::Linear(13, 11));
    unused = register_module("unused", torch::nn::Linear(3, 3));
    last = register_module("last", torch::nn::Linear(11, kOut));
    scale = register_parameter("scale", torch::tensor(0.7));
    shift = register_parameter("shift", torch::arange(3, torch::kLong), /*requires_grad=*/false);
    row = register_parameter("row", torch::randn({1, 13}));
    for (Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = torch::tanh(first(x)) * row;
    const Tensor again = torch::tanh(twice(torch::tanh(twice(h))));
    return last(torch::tanh(frozen(again))) * scale + shift.sum();
  }
  torch::nn::Linear first{nullptr}, twice{nullptr}, frozen{nullptr}, unused{nullptr}, last{nullptr};
  Tensor scale, shift, row;
};

// The head is the embedding. `alias`: through a second tensor over the same memory, another leaf of autograd.
struct Tied final : Net {
  explicit Tied(bool alias) {
    embedding = register_module("embedding", torch::nn::Embedding(kVocab, 8));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(8, 8));
    if (alias)
      head = register_parameter("head", embedding->weight.detach().view({kVocab, 8}));
    else
      head = register_parameter("head", embedding->weight);
  }
  Tensor forward(const Tensor& tokens) override {
    Tensor x = embedding(tokens);
    for (const auto& layer : *layers) x = x + torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return F::linear(x, head) + 0.1 * embedding->weight.sum();
  }
  Tensor input() const override { return torch::randint(kVocab, {kBatch, kLength}, torch::kLong); }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList layers;
  Tensor head;
};

struct Encoder final : Net {
  Encoder() {
    embedding = register_module("embedding", torch::nn::Embedding(kVocab, 12));
    encoder = register_module("encoder",
                              torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                                  torch::nn::TransformerEncoderLayerOptions(12, 3).dim_feedforward(19).dropout(0), 3)));
    head = register_module("head", torch::nn::Linear(12, kOut));
  }
  Tensor forward(const Tensor& tokens) override { return head(encoder(embedding(tokens).transpose(0, 1)).mean(0)); }
  Tensor input() const override { return torch::randint(kVocab, {kBatch, kLength}, torch::kLong); }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::TransformerEncoder encoder{nullptr};
  torch::nn::Linear head{nullptr};
};

// Samples choose their way: the first half of the batch goes through one layer, the other through another of the same
// shape, in an order that depends on which come first. Some ranks use one of them alone.
struct Routed final : Net {
  Routed() {
    in = register_module("in", torch::nn::Linear(kIn, 9));
    left = register_module("left", torch::nn::Linear(9, 9));
    right = register_module("right", torch::nn::Linear(9, 9));
    out = register_module("out", torch::nn::Linear(9, kOut));
  }
  Tensor forward(const Tensor& x) override {
    const Tensor goes_left = x.select(1, 0) > 0;
    const Tensor h = torch::tanh(in(x));
    std::vector<Tensor> parts;
    const auto through = [&](torch::nn::Linear& layer, const Tensor& rows) {
      if (rows.any().item<bool>()) parts.push_back(torch::tanh(layer(h.index({rows}))));
    };
    if (goes_left[0].item<bool>()) {
      through(left, goes_left);
      through(right, ~goes_left);
    } else {
      through(right, ~goes_left);
      through(left, goes_left);
    }
    return out(torch::cat(parts));
  }
  Tensor input() const override {
    Tensor x = torch::randn({kBatch, kIn});
    x.select(1, 0).abs_();
    x.narrow(0, 0, kBatch / 2).select(1, 0).neg_();
    return x;
  }
  torch::nn::Linear in{nullptr}, left{nullptr}, right{nullptr}, out{nullptr};
};

std::shared_ptr<Net> make_net(std::string_view kind, bool for_reference) {
  if (kind == "mixed") return std::make_shared<Mixed>();
  if (kind == "tied") return std::make_shared<Tied>(false);
  if (kind == "alias") return std::make_shared<Tied>(!for_reference);
  if (kind == "encoder") return std::make_shared<Encoder>();
  if (kind == "routed") return std::make_shared<Routed>();
  throw_internal("no net {}", kind);
}

// fp32 rounding may turn the sign of a gradient that is nearly zero, which Adam's quotient would make a whole step of.
torch::optim::AdamOptions adam() { return torch::optim::AdamOptions(1e-2).eps(1e-3); }

Tensor loss_of(Net& net, const Tensor& x) { return net.forward(x).square().sum() / kBatch; }

struct Trained {
  std::vector<std::map<std::string, Tensor>> gradients;  // of each step, of what is trained
  std::map<std::string, Tensor> weights;
  std::vector<double> norms;
};

std::vector<Tensor> batches(const Net& net, torch::ScalarType dtype) {
  torch::manual_seed(5);
  std::vector<Tensor> result;
  for (int64_t step = 0; step < kSteps; ++step) {
    const Tensor x = net.input();
    result.push_back(x.is_floating_point() ? x.to(dtype) : x);
  }
  return result;
}

// LibTorch alone.
Trained reference(std::string_view kind, torch::ScalarType dtype, double clip) {
  torch::manual_seed(3);
  const std::shared_ptr<Net> net = make_net(kind, true);
  // Not to(dtype): it would make the integers floating, too.
  for (Tensor& parameter : net->parameters())
    if (parameter.is_floating_point()) parameter.set_data(parameter.detach().to(dtype));
  std::map<std::string, Tensor> trained;
  std::vector<Tensor> unique;
  for (const auto& item : net->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    bool known = false;
    for (const Tensor& other : unique) known = known || other.is_same(item.value());
    if (known) continue;
    unique.push_back(item.value());
    trained[item.key()] = item.value();
  }
  torch::optim::Adam optimizer(unique, adam());
  Trained result;
  for (const Tensor& x : batches(*net, dtype)) {
    optimizer.zero_grad();
    loss_of(*net, x).backward();
    auto& gradients = result.gradients.emplace_back();
    double sum = 0;
    for (const auto& [name, tensor] : trained) {
      gradients[name] = tensor.grad().defined() ? tensor.grad().clone() : torch::zeros_like(tensor);
      sum += std::pow(gradients[name].to(torch::kDouble).norm().item<double>(), 2);
    }
    result.norms.push_back(std::sqrt(sum));
    if (clip > 0) torch::nn::utils::clip_grad_norm_(unique, clip);
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) result.weights[item.key()] = item.value().detach().clone();
  return result;
}

// ---- What runs in each rank ----

struct Worker {
  std::shared_ptr<comm::Communicator> world;
  std::filesystem::path folder;
  int faults = 0;
  bool lost = false;  // the ranks cannot exchange any more, as was wanted
  std::map<int64_t, comm::Mesh> meshes;

  // `shard` ranks divide, the others hold the same.
  const comm::Mesh& mesh(int64_t shard) {
    const auto known = meshes.find(shard);
    if (known != meshes.end()) return known->second;
    return meshes.emplace(shard, comm::Mesh(world, {.shard = shard, .replicate = world->size() / shard})).first->second;
  }
  void check(bool holds, const std::string& what) {
    if (holds) return;
    ++faults;
    std::fprintf(stderr, "rank %d of %d: %s\n", static_cast<int>(world->rank()), static_cast<int>(world->size()),
                 what.c_str());
  }
  template <typename Action>
  void check_refused(const std::string& words, const Action& action) {
    try {
      action();
      check(false, "not refused: " + words);
    } catch (const Error& error) {
      check(std::string(error.what()).find(words) != std::string::npos, words + " is not in: " + error.what());
    }
  }
};

struct Case {
  std::string_view kind;
  torch::ScalarType dtype = torch::kDouble;
  Level level = Level::none;
  int64_t shard_size = 0;  // 0: all
  int64_t passes = 1;
  double clip = 0;
  ShardedModuleOptions options = {};
  std::string name() const {
    const char* const levels[] = {"none", "optimizer", "gradients", "parameters"};
    return fmt::format("{} {} {} shard_size {} passes {} clip {} prefetch {} reshard {} at once {}", kind,
                       c10::toString(dtype), levels[static_cast<int>(level)], shard_size, passes, clip,
                       options.prefetch, options.reshard_after_forward, options.reduce_every_micro_batch);
  }
};

struct Setting {
  Setting(Worker& worker, const Case& row)
      : mesh(worker.mesh(row.level == Level::none ? 1
                         : row.shard_size > 0     ? row.shard_size
                                                  : worker.world->size())) {
    torch::manual_seed(3 + 100 * worker.world->rank());  // the weights have to come from rank 0
    net = make_net(row.kind, false);
    for (Tensor& parameter : net->parameters())
      if (parameter.is_floating_point()) parameter.set_data(parameter.detach().to(row.dtype));
    if (row.kind == "alias") {  // set_data has parted them
      auto& tied = dynamic_cast<Tied&>(*net);
      tied.head.set_data(tied.embedding->weight.detach());
    }
    ShardedModuleOptions options = row.options;
    options.level = row.level;
    sharded = std::make_unique<ShardedModule>(net, mesh.axis("shard"), mesh.axis("replicate"), options);
  }
  const comm::Mesh& mesh;
  std::shared_ptr<Net> net;
  std::unique_ptr<ShardedModule> sharded;
};

// One step on this rank's samples; gradients are there afterwards, the update is the caller's.
void run_passes(Worker& worker, Setting& setting, const Tensor& x, int64_t passes) {
  const int64_t ranks = worker.world->size(), rank = worker.world->rank();
  const int64_t first = kBatch * rank / ranks, rows = kBatch * (rank + 1) / ranks - first;
  if (passes > 1) setting.sharded->begin_step(passes);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t begin = rows * pass / passes, end = rows * (pass + 1) / passes;
    loss_of(*setting.net, x.narrow(0, first + begin, end - begin)).backward();
  }
}

std::map<std::string, Tensor> train(Worker& worker, const Case& row, const Trained* expected) {
  Setting setting(worker, row);
  const double tol = row.dtype == torch::kDouble ? 1e-10 : 1e-5;
  torch::optim::Adam optimizer(setting.sharded->parameters(), adam());
  const std::vector<Tensor> inputs = batches(*setting.net, row.dtype);
  for (size_t step = 0; step < inputs.size(); ++step) {
    run_passes(worker, setting, inputs[step], row.passes);
    const double norm = setting.sharded->gradient_norm();
    // Later gradients are those of other weights, which fp32 has rounded since.
    if (expected != nullptr && (row.dtype == torch::kDouble || step == 0)) {
      const double whole = expected->norms[step];
      worker.check(std::abs(norm - whole) <= tol * whole, fmt::format("{}: norm {} and {}", row.name(), norm, whole));
      const auto& gradients = expected->gradients[step];
      const double floor = 1e-3 * whole / std::sqrt(static_cast<double>(gradients.size()));
      for (const auto& [name, a] : gradients) {
        const Tensor b = setting.sharded->gather_gradient(name);
        const double size = a.norm().item<double>(), difference = (a - b).norm().item<double>();
        worker.check(difference <= tol * std::max(size, floor),
                     fmt::format("{}, step {}: the gradient of {} differs by {} of {}", row.name(), step, name,
                                 difference, size));
      }
    }
    if (row.clip > 0) setting.sharded->clip_gradients(row.clip);
    setting.sharded->step(optimizer);
  }
  std::map<std::string, Tensor> weights;
  for (const auto& item : setting.net->named_parameters())
    if (item.value().is_floating_point()) weights[item.key()] = setting.sharded->gather_parameter(item.key());
  if (expected == nullptr) return weights;
  for (const auto& [name, b] : weights) {
    const Tensor& a = expected->weights.at(name);
    const double size = a.norm().item<double>(), difference = (a - b).norm().item<double>();
    worker.check(difference <= tol * size,
                 fmt::format("{}: {} differs by {} of {} after {} steps", row.name(), name, difference, size, kSteps));
  }
  return weights;
}

constexpr Level kLevels[] = {Level::none, Level::optimizer, Level::gradients, Level::parameters};

// All rows, or every fifth.
void run_gradients(Worker& worker, bool all) {
  int next = 0;
  for (const std::string_view kind : {"mixed", "tied", "alias", "encoder", "routed"}) {
    for (const torch::ScalarType dtype : {torch::kDouble, torch::kFloat}) {
      std::map<double, Trained> expected;
      for (const double clip : {0.0, 0.1}) expected.emplace(clip, reference(kind, dtype, clip));
      for (const Level level : kLevels) {
        // Whoever gathers weights has to run the same operations.
        if (kind == "routed" && level == Level::parameters) continue;
        std::vector<Case> rows;
        rows.push_back({kind, dtype, level});
        rows.push_back({kind, dtype, level, 0, kind == "routed" ? 1 : 3, 0.1});
        if (level >= Level::gradients) {
          rows.push_back({kind, dtype, level, 0, 2, 0});
          rows.back().options.reduce_every_micro_batch = false;
        }
        if (level == Level::parameters) {
          for (const int64_t prefetch : {0, 2, 9}) {
            rows.push_back({kind, dtype, level, 0, 2, 0});
            rows.back().options.prefetch = prefetch;
          }
          rows.push_back({kind, dtype, level, 0, 2, 0});
          rows.back().options.reshard_after_forward = false;
          rows.push_back({kind, dtype, level});
          rows.back().options.units = std::vector<std::string>{};  // all is one unit
        }
        if (worker.world->size() % 2 == 0 && level != Level::none)
          rows.push_back({kind, dtype, level, worker.world->size() / 2, 1, 0.1});
        for (const Case& row : rows)
          if (all || next++ % 5 == 0) train(worker, row, &expected.at(row.clip));
      }
    }
  }
}

// Where nothing but the order of sums is at stake, the level changes no bit.
void run_bits(Worker& worker) {
  for (const std::string_view kind : {"mixed", "alias", "encoder"}) {
    for (const bool bf16 : {false, true}) {
      std::map<std::string, Tensor> first;
      for (const Level level : kLevels) {
        Case row{kind, torch::kFloat, level};
        if (bf16) row.options.compute_dtype = torch::kBFloat16;
        if (bf16 && kind == "mixed") continue;  // it is given fp32
        const auto weights = train(worker, row, nullptr);
        if (first.empty()) first = weights;
        for (const auto& [name, tensor] : weights)
          worker.check(tensor.scalar_type() == torch::kFloat && tensor.equal(first.at(name)),
                       fmt::format("{}, bf16 {}: {} is not the same", row.name(), bf16, name));
      }
    }
  }
}

// Bytes a rank, by what they are for: the table of docs/parallelism.md, within 3 %.
void run_memory(Worker& worker) {
  static constexpr int64_t kLayers = 6, kWidth = 320;
  const auto ranks = static_cast<double>(worker.world->size());
  struct Deep final : Net {
    Deep() {
      layers = register_module("layers", torch::nn::Sequential());
      for (int64_t i = 0; i < kLayers; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
      edge = register_parameter("edge", torch::randn({kWidth, kWidth}));
    }
    Tensor forward(const Tensor& x) override { return F::linear(layers->forward(x), edge); }
    torch::nn::Sequential layers;
    Tensor edge;
  };
  const double block = kWidth * kWidth + kWidth, rest = kWidth * kWidth, all = kLayers * block + rest;
  for (const Level level : kLevels) {
    const comm::Mesh& mesh = worker.mesh(level == Level::none ? 1 : worker.world->size());
    const memory::PurposeBytes empty = memory::allocator_statistics().live;
    const auto net = std::make_shared<Deep>();
    ShardedModuleOptions options;
    options.level = level;
    options.compute_dtype = torch::kBFloat16;
    ShardedModule sharded(net, mesh.axis("shard"), mesh.axis("replicate"), options);
    torch::optim::SGD optimizer(sharded.parameters(), 1e-4);
    for (int step = 0; step < 2; ++step) {
      net->forward(torch::randn({4, kWidth}, torch::kBFloat16)).sum().backward();
      sharded.step(optimizer);
    }
    const memory::PurposeBytes live = memory::allocator_statistics().live;
    const auto held = [&](memory::Purpose purpose) {
      return static_cast<double>(memory::of(live, purpose) - memory::of(empty, purpose));
    };
    const double divided = level == Level::none ? 1 : ranks;
    const double weights = level == Level::parameters ? 2 * (2 * block + rest) / ranks : 2 * all / divided;
    const double gradients = level >= Level::gradients ? 4 * all / ranks + 4 * (2 * block + rest) : 4 * all;
    const double masters = 4 * all / divided;
    const auto near = [&](const char* what, double found, double expected) {
      worker.check(std::abs(found - expected) <= 0.03 * expected + 4096,
                   fmt::format("level {}: {} bytes of {}, not {}", static_cast<int>(level), found, what, expected));
    };
    near("weights", held(memory::Purpose::weights), weights);
    near("gradients", held(memory::Purpose::gradients), gradients);
    near("master weights", held(memory::Purpose::master_weights), masters);
    // What the module was made with is gone, and no gradient is left in it.
    worker.check(held(memory::Purpose::other) < 0.1 * all,
                 fmt::format("level {}: {} bytes of other", static_cast<int>(level), held(memory::Purpose::other)));
  }
}

// What is saved is what a plain module loads; what is loaded goes on in the same bits.
void run_files(Worker& worker) {
  const std::string path = worker.folder / fmt::format("net{}.pt", worker.world->size());
  for (const Level level : kLevels) {
    for (const std::string_view kind : {"mixed", "encoder"}) {
      const Case row{kind, torch::kFloat, level};
      Setting a(worker, row);
      torch::optim::SGD steps(a.sharded->parameters(), 0.01);
      const std::vector<Tensor> inputs = batches(*a.net, row.dtype);
      run_passes(worker, a, inputs[0], 1);
      a.sharded->step(steps);
      a.sharded->save(path);
      torch::manual_seed(11);
      const std::shared_ptr<Net> plain = make_net(kind, true);
      {
        torch::serialize::InputArchive archive;
        archive.load_from(path);
        plain->load(archive);
      }
      for (const auto& item : plain->named_parameters())
        if (item.value().is_floating_point())
          worker.check(item.value().equal(a.sharded->gather_parameter(item.key())), path + " lacks " + item.key());
      {
        const torch::NoGradGuard no_grad;
        worker.check(plain->forward(inputs[1]).sub(a.net->forward(inputs[1])).abs().max().item<double>() < 1e-6,
                     row.name() + ": a plain module that loads it computes the same");
      }
      Setting b(worker, row);
      b.sharded->load(path);
      torch::optim::SGD more(b.sharded->parameters(), 0.01);
      for (Setting* each : {&a, &b}) {
        run_passes(worker, *each, inputs[1], 1);
        each->sharded->step(each == &a ? steps : more);
      }
      for (const auto& item : a.net->named_parameters())
        if (item.value().is_floating_point())
          worker.check(a.sharded->gather_parameter(item.key()).equal(b.sharded->gather_parameter(item.key())),
                       row.name() + ": after loading " + item.key());
    }
  }
}

// A module with buffers; units named.
struct Normed final : Net {
  Normed() {
    in = register_module("in", torch::nn::Linear(kIn, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    out = register_module("out", torch::nn::Linear(6, kOut));
  }
  Tensor forward(const Tensor& x) override { return out(torch::tanh(norm(in(x)))); }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

void run_rules(Worker& worker) {
  const int64_t rank = worker.world->rank(), ranks = worker.world->size();
  const comm::Mesh& mesh = worker.mesh(ranks);
  comm::Communicator &shards = mesh.axis("shard"), &alone = mesh.axis("replicate");

  // Running statistics of unequal samples: rank 0's on all, or each its own.
  for (const bool broadcast : {true, false}) {
    torch::manual_seed(rank);
    const auto net = std::make_shared<Normed>();
    ShardedModuleOptions options{.level = Level::gradients};
    options.broadcast_buffers = broadcast;
    ShardedModule sharded(net, shards, alone, options);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    const Tensor before = net->norm->running_mean.clone();
    loss_of(*net, torch::randn({9, kIn})).backward();
    sharded.step(optimizer);
    const Tensor own = net->norm->running_mean, first = own.clone();
    worker.check(!own.equal(before), "running statistics run");
    worker.world->broadcast(first, 0);
    worker.check(own.equal(first) == (broadcast || rank == 0), fmt::format("buffers, broadcast = {}", broadcast));
    worker.check(net->norm->num_batches_tracked.item<int64_t>() == 1, "an integer buffer");
  }

  // What rank 0 leaves in whole parameters becomes the weights, and everybody computes with it.
  for (const Level level : {Level::optimizer, Level::parameters}) {
    Case row{"mixed", torch::kFloat, level};
    Setting setting(worker, row);
    setting.sharded->with_whole_parameters(
        [&] {
          const torch::NoGradGuard no_grad;
          for (Tensor& parameter : setting.net->parameters())
            if (parameter.is_floating_point()) parameter.fill_(0.01 * static_cast<double>(rank + 1));
        },
        /*keep=*/true);
    const torch::NoGradGuard no_grad;
    const Tensor all = setting.sharded->gather_parameter("twice.weight");
    worker.check(all.sizes() == at::IntArrayRef({13, 13}) && all.eq(0.01F).all().item<bool>(), "rank 0's are kept");
    const Tensor scores = setting.net->forward(torch::ones({2, kIn}));
    const Tensor first = scores.clone();
    worker.world->broadcast(first, 0);
    worker.check(scores.equal(first), "all compute with them");
  }

  // Same shapes in another order: not told apart by shape, and told all the same. With whole weights it is allowed.
  const auto crosswise = [&](Level level) {
    torch::manual_seed(2);
    const auto net = std::make_shared<Routed>();
    ShardedModule sharded(net, shards, alone, {.level = level});
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    Tensor x = torch::randn({4, kIn});
    x.select(1, 0).copy_(rank == 0 ? torch::tensor({1., -1., 1., -1.}) : torch::tensor({-1., 1., -1., 1.}));
    loss_of(*net, x).backward();
    sharded.step(optimizer);
  };
  crosswise(Level::gradients);

  // Ranks with different modules.
  worker.check_refused("do not have the same module", [&] {
    const torch::nn::Linear other(3, rank == 0 ? 4 : 5);
    const ShardedModule sharded(other.ptr(), shards, alone, {.level = Level::gradients});
  });
  worker.check_refused("level none divides nothing", [&] {
    const torch::nn::Linear other(3, 4);
    const ShardedModule sharded(other.ptr(), shards, alone, {});
  });
  // Last, since it is the end of the communicator.
  // One gathers the unit whose gradients another exchanges.
  worker.check_refused("on axis shard differs", [&] { crosswise(Level::parameters); });
  worker.lost = true;
}

void run_worker(Worker& worker, const std::string& suite) {
  if (suite == "rules") run_rules(worker);
  if (suite == "gradients") run_gradients(worker, false);
  if (suite == "all gradients") run_gradients(worker, true);
  if (suite == "bits") run_bits(worker);
  if (suite == "memory") run_memory(worker);
  if (suite == "files") run_files(worker);
}

int run_as_worker(char** argv) {
  memory::install_caching_allocator();
  at::set_num_threads(1);
  Worker worker;
  comm::ConnectOptions options;
  options.timeout = std::chrono::seconds(60);
  worker.world = comm::connect(comm::detect_environment(), options);
  worker.folder = argv[3];
  try {
    run_worker(worker, argv[2]);
    if (!worker.lost) worker.world->barrier();
  } catch (const std::exception& error) {
    worker.check(false, error.what());
    worker.world->abort(error.what());
  }
  return worker.faults == 0 ? 0 : 1;
}

// ---- What starts them ----

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  socklen_t length = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

// Runs a suite in so many ranks, each of which must end well.
void in_ranks(int ranks, const std::string& suite) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("trireme_foreign_{}", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string port = std::to_string(free_port());
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> environment = {fmt::format("RANK={}", rank),
                                            fmt::format("WORLD_SIZE={}", ranks),
                                            fmt::format("LOCAL_RANK={}", rank),
                                            fmt::format("LOCAL_WORLD_SIZE={}", ranks),
                                            "MASTER_ADDR=127.0.0.1",
                                            "MASTER_PORT=" + port,
                                            "OMP_NUM_THREADS=1"};
    std::vector<std::string> arguments = {"test_foreign_module", "--worker", suite, folder.string()};
    std::vector<char*> argv, envp;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    for (std::string& variable : environment) envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    pid_t child = 0;
    ASSERT_EQ(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv.data(), envp.data()), 0);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << ranks << " ranks: " << suite;
  }
  std::filesystem::remove_all(folder);
}

TEST(ForeignModule, EveryGradientAndWeightIsLibTorchs) {
  const char* soak = std::getenv("TRIREME_SOAK");
  const bool all = soak != nullptr && std::string_view(soak) == "1";
  for (const int ranks : {1, 2, 3, 4}) in_ranks(ranks, all ? "all gradients" : "gradients");
}
TEST(ForeignModule, LevelsLearnTheSameBits) {
  for (const int ranks : {2, 3}) in_ranks(ranks, "bits");
}
TEST(ForeignModule, MemoryFallsAsTheLevelSays) {
  for (const int ranks : {2, 4}) in_ranks(ranks, "memory");
}
TEST(ForeignModule, SavedAndLoaded) {
  for (const int ranks : {2, 3}) in_ranks(ranks, "files");
}
TEST(ForeignModule, BuffersOrderAndDifferentModules) {
  for (const int ranks : {2, 3}) in_ranks(ranks, "rules");
}

// ---- What one process shows ----

template <typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "not refused";
}

struct Alone {
  std::shared_ptr<comm::Communicator> shards = comm::Communicator::solo("shard"),
                                      replicas = comm::Communicator::solo("replicate");
  std::unique_ptr<ShardedModule> wrap(const std::shared_ptr<torch::nn::Module>& net, Level level,
                                      ShardedModuleOptions options = {}) {
    options.level = level;
    return std::make_unique<ShardedModule>(net, *shards, *replicas, options);
  }
};

TEST(ForeignModule, WhatCannotBeTrainedIsNamedAllAtOnce) {
  using testing::HasSubstr;
  Alone alone;
  struct Faulty : torch::nn::Module {
    Faulty() {
      whole = register_parameter("whole", torch::randn({4, 4}));
      part = register_parameter("part", whole.detach().narrow(0, 1, 2));
      wide = register_parameter("wide", torch::randn({3}, torch::kDouble));
      away = register_parameter("away", torch::empty({3}, torch::kMeta));
      inner = register_module("inner", torch::nn::Linear(2, 2));
    }
    Tensor whole, part, wide, away;
    torch::nn::Linear inner{nullptr};
  };
  const auto net = std::make_shared<Faulty>();
  ShardedModuleOptions options;
  options.units = {"iner"};
  const std::string text = refusal([&] { alone.wrap(net, Level::optimizer, options); });
  for (const char* words : {"no submodule iner; did you mean inner?", "part and whole share memory", "wide is Double",
                            "away is on the meta device"})
    EXPECT_THAT(text, HasSubstr(words));
  options = {};
  options.prefetch = -1;
  options.compute_dtype = torch::kLong;
  const std::string more = refusal([&] { alone.wrap(torch::nn::Linear(2, 2).ptr(), Level::parameters, options); });
  EXPECT_THAT(more, HasSubstr("prefetch = -1"));
  EXPECT_THAT(more, HasSubstr("compute_dtype = Long"));
  EXPECT_THAT(refusal([&] { alone.wrap(torch::nn::ReLU().ptr(), Level::none); }), HasSubstr("no parameters"));
}

TEST(ForeignModule, AStepOutOfOrderIsRefused) {
  using testing::HasSubstr;
  Alone alone;
  for (const Level level : kLevels) {
    torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
    const auto sharded = alone.wrap(net.ptr(), level);
    torch::optim::SGD optimizer(sharded->parameters(), 0.1), wrong(net->parameters(), 0.1);
    torch::optim::LBFGS global(sharded->parameters());
    const auto backward = [&] { net->forward(torch::randn({2, 3})).sum().backward(); };
    EXPECT_THAT(refusal([&] { sharded->step(optimizer); }), HasSubstr("an update after 0 of the step's 1 backward"));
    sharded->begin_step(2);
    backward();
    EXPECT_THAT(refusal([&] { sharded->clip_gradients(1); }), HasSubstr("after 1 of the step's 2 backward"));
    EXPECT_THAT(refusal([&] { sharded->begin_step(1); }), HasSubstr("would be lost"));
    backward();
    EXPECT_THAT(refusal([&] { sharded->step(wrong); }), HasSubstr("is none of parameters()"));
    EXPECT_THAT(refusal([&] { sharded->step(global); }), HasSubstr("LBFGS"));
    EXPECT_THAT(refusal([&] { sharded->clip_gradients(0); }), HasSubstr("above 0"));
    EXPECT_THAT(refusal([&] { static_cast<void>(sharded->gather_gradient("0.wieght")); }),
                HasSubstr("did you mean 0.weight?"));
    sharded->step(optimizer);
    backward();
    EXPECT_THAT(refusal(backward), HasSubstr("came after the last of the step's 1 backward passes"));
    net->parameters()[0].requires_grad_(false);
    EXPECT_THAT(refusal([&] { sharded->step(optimizer); }), HasSubstr("0.weight was frozen"));
  }
}

TEST(ForeignModule, GradientsThatCannotBeExchangedAreRefused) {
  using testing::HasSubstr;
  Alone alone;
  struct Lookup : torch::nn::Module {
    Lookup() { table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).sparse(true))); }
    torch::nn::Embedding table{nullptr};
  };
  const auto net = std::make_shared<Lookup>();
  const auto sharded = alone.wrap(net, Level::gradients);
  EXPECT_THAT(refusal([&] { net->table(torch::zeros({2}, torch::kLong)).sum().backward(); }),
              HasSubstr("the gradient of table.weight is sparse"));
}

// A backward pass inside another, as recomputation makes: within one unit it is right, later it is refused.
// What forward reads is then no longer what is trained, or each rank that shares the memory writes once more.
TEST(ForeignModule, WeightsThatOthersHaveWrittenAreRefused) {
  using testing::HasSubstr;
  Alone alone;
  for (const Level level : kLevels) {
    const auto text_of = [&](const std::function<void(torch::nn::Sequential&)>& change) {
      torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
      const auto sharded = alone.wrap(net.ptr(), level);
      torch::optim::SGD optimizer(sharded->parameters(), 0.1);
      const auto backward = [&] { net->forward(torch::ones({2, 3})).square().sum().backward(); };
      backward();
      sharded->step(optimizer);
      return refusal([&] {
        change(net);
        net->forward(torch::ones({2, 3}).to(net->parameters()[0].scalar_type())).square().sum().backward();
        sharded->step(optimizer);
      });
    };
    EXPECT_EQ(text_of([](torch::nn::Sequential&) {}), "not refused");
    if (level != Level::parameters) {  // there it is the operation itself that is refused
      EXPECT_THAT(text_of([](torch::nn::Sequential& net) {
                    const torch::NoGradGuard no_grad;
                    net->parameters()[2].mul_(0.5);
                  }),
                  HasSubstr("1.weight was written in place"));
    }
    EXPECT_THAT(text_of([](torch::nn::Sequential& net) { net->to(torch::kDouble); }), HasSubstr("has other memory"));
  }
}

TEST(ForeignModule, AGraphFromBeforeAnUpdateIsRefused) {
  Alone alone;
  for (const Level level : kLevels) {
    torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
    const auto sharded = alone.wrap(net.ptr(), level);
    torch::optim::SGD optimizer(sharded->parameters(), 0.1);
    const auto loss = [&] { return net->forward(torch::ones({2, 3}).requires_grad_()).square().sum(); };
    const Tensor before = loss();
    loss().backward();
    sharded->step(optimizer);
    try {
      before.backward();
      ADD_FAILURE() << "activations of other weights";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("modified by an inplace operation"));
    }
  }
}

TEST(ForeignModule, AWeightBelongsToOneWrapper) {
  Alone alone;
  const auto shared = std::make_shared<torch::nn::LinearImpl>(3, 3);
  torch::nn::Sequential one(shared), two(shared, torch::nn::Linear(3, 3));
  const auto sharded = alone.wrap(one.ptr(), Level::none);
  EXPECT_THAT(refusal([&] { static_cast<void>(alone.wrap(two.ptr(), Level::none)); }),
              testing::HasSubstr("0.weight is trained by another ShardedModule"));
}

struct Again : torch::autograd::Function<Again> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        std::function<Tensor(Tensor)> what) {
    context->save_for_backward({x});
    context->saved_data["what"] = reinterpret_cast<int64_t>(new std::function<Tensor(Tensor)>(std::move(what)));
    const torch::NoGradGuard no_grad;
    return (*reinterpret_cast<std::function<Tensor(Tensor)>*>(context->saved_data["what"].toInt()))(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const std::unique_ptr<std::function<Tensor(Tensor)>> what(
        reinterpret_cast<std::function<Tensor(Tensor)>*>(context->saved_data["what"].toInt()));
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const torch::AutoGradMode enabled(true);
    (*what)(x).backward(gradients[0]);
    return {x.grad(), Tensor()};
  }
};

TEST(ForeignModule, ABackwardPassInsideAnother) {
  Alone alone;
  for (const Level level : kLevels) {
    for (const bool one_unit : {true, false}) {
      torch::manual_seed(1);
      torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
      const Tensor x = torch::randn({2, 3});
      const auto loss = [&](bool again) {
        Tensor h = torch::tanh(net->ptr(0)->as<torch::nn::Linear>()->forward(x));
        const auto middle = [&](const Tensor& y) {
          return torch::tanh(net->ptr(1)->as<torch::nn::Linear>()->forward(y));
        };
        h = again ? Again::apply(h, middle) : middle(h);
        h = middle(again ? Again::apply(h, middle) : middle(h));  // the middle is used by both passes
        return net->ptr(2)->as<torch::nn::Linear>()->forward(h).square().sum();
      };
      loss(false).backward();
      std::vector<Tensor> expected;
      for (const Tensor& parameter : net->parameters()) expected.push_back(parameter.grad().clone());
      ShardedModuleOptions options;
      if (one_unit) options.units = std::vector<std::string>{};
      const auto sharded = alone.wrap(net.ptr(), level, options);
      if (!one_unit) {
        const std::string text = refusal([&] {
          loss(true).backward();
          static_cast<void>(sharded->gradient_norm());
        });
        EXPECT_NE(text.find("recomputation"), std::string::npos) << text;
        continue;
      }
      loss(true).backward();
      const auto names = net->named_parameters().keys();
      for (size_t i = 0; i < names.size(); ++i)
        EXPECT_LE((sharded->gather_gradient(names[i]) - expected[i]).abs().max().item<double>(), 1e-6) << names[i];
    }
  }
}

TEST(ForeignModule, WeightsThatAreGatheredAreSeenWhereverTheyAreRead) {
  using testing::HasSubstr;
  Alone alone;
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  std::vector<Tensor> before;
  for (const Tensor& parameter : net->parameters()) before.push_back(parameter.detach().clone());
  const auto sharded = alone.wrap(net.ptr(), Level::parameters);
  const std::vector<Tensor> now = net->parameters();
  // Outside of forward, through views, in lists; each is there when it is read.
  for (int turn = 0; turn < 2; ++turn) {
    for (size_t i = 0; i < now.size(); ++i) {
      EXPECT_TRUE(now[i].detach().equal(before[i])) << i;
      EXPECT_TRUE(torch::stack({now[i].t().t().detach(), before[i]}).select(0, 0).equal(before[i])) << i;
    }
  }
  const torch::NoGradGuard no_grad;
  EXPECT_THAT(refusal([&] { now[2].zero_(); }), HasSubstr("aten::zero_ writes to a weight of the unit 1"));
  // The first and the third take turns in one place.
  EXPECT_THAT(refusal([&] {
                static_cast<void>(F::linear(torch::randn({1, 4}), now[0], now[5]));
              }),
              HasSubstr("reads weights of the units 2 and 0 at once"));
}

TEST(ForeignModuleDeathTest, AWeightThatIsNotThereCannotBeRead) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  Alone alone;
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  const auto sharded = alone.wrap(net.ptr(), Level::parameters);
  static_cast<void>(net->forward(torch::randn({1, 4})));
  EXPECT_DEATH(std::fprintf(stderr, "%f", static_cast<double>(*net->parameters()[0].const_data_ptr<float>())), "");
}

TEST(ForeignModule, SubmodulesByType) {
  const Encoder net;
  EXPECT_EQ(submodules_of_type<torch::nn::TransformerEncoderLayerImpl>(net),
            (std::vector<std::string>{"encoder.layers.0", "encoder.layers.1", "encoder.layers.2"}));
}

}  // namespace
}  // namespace trireme::parallel

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--worker") return trireme::parallel::run_as_worker(argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
