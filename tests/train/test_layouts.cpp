// Every gradient of a step is the same for any number of workers, any accumulation, and with recomputation.
//
// Each row starts real ranks: this binary, executed again with the variables that torchrun would set. Rank 0 leaves its
// reduced gradients in a file. Measure: |a-b| <= tol * max(|a|, 1e-3 |g| / sqrt(number of tensors)), tol 1e-10 in fp64
// and 1e-5 in fp32.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "base/file.h"
#include "checkpoint/store.h"
#include "comm/rendezvous.h"
#include "train/checkpointing.h"
#include "train/first_use.h"
#include "train/replica_check.h"
#include "train/session.h"
#include "train/step.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

config::Config make_config(const std::string& folder, const std::string& settings) {
  std::vector<std::string> overrides;
  for (size_t at = 0; at < settings.size();) {
    const size_t end = std::min(settings.find(' ', at), settings.size());
    overrides.push_back(settings.substr(at, end - at));
    at = end + 1;
  }
  const std::string toml = R"(
[run]
dir = "unused"
[model]
layers = 3
hidden = 48
heads = 6
kv_heads = 2
ffn = 80
vocab = 389
max_seq_len = 32
[data]
path = "train"
generator = "synthetic-english"
vocab = 389
[train]
steps = 3
seq_len = 32
global_batch_size = 12
[lr_schedule]
warmup_steps = 2
)";
  return config::parse_config(toml, "layouts.toml", folder, overrides);
}

// A step whose gradients are not finite changes nothing on any rank, is named, and the next one goes on. A NaN in the
// copy that computes, on the last rank alone, makes such a step; the master weights are what must stay.
int run_skip(Session& session) {
  int faults = 0;
  const auto check = [&](bool holds, const char* what) {
    if (!holds) std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(session.mesh->rank()), what);
    faults += !holds;
  };
  const auto never = [] { return false; };
  const auto state = [&] {
    std::vector<at::Tensor> parts;
    for (const nn::Parameter* parameter : session.model->parameters())
      parts.push_back(parameter->master().reshape({-1}));
    for (const auto& moments : session.optimizer->moments()) {
      parts.push_back(moments.exp_avg.reshape({-1}));
      parts.push_back(moments.exp_avg_sq.reshape({-1}));
    }
    return at::cat(parts).clone();
  };
  check(!step(session, never).skipped, "the first step is sound");
  const at::Tensor before = state();
  // The first row of what computes, which the last rank writes where the ranks share it.
  const bool planted = session.mesh->rank() == session.mesh->size() - 1;
  std::optional<parallel::DataParallel::Substitution> substitution;
  std::vector<at::Tensor> spoiled;
  for (const nn::Parameter* parameter : session.model->parameters()) spoiled.push_back(parameter->master().clone());
  if (planted) spoiled.back().view({-1})[0] = std::numeric_limits<double>::quiet_NaN();
  substitution.emplace(*session.data_parallel, spoiled);
  const StepResult skipped = step(session, never);
  check(skipped.skipped, "a step with a NaN is skipped");
  check(!std::isfinite(skipped.grad_norm), "its norm is told");
  check(!skipped.skipped_parameter.empty(), "a parameter is named");
  check(state().equal(before), "a skipped step leaves weights and moments alone");
  check(session.optimizer->updates() == 1, "a skipped step is no update");
  check(session.progress.step == 2, "a skipped step counts as a step");
  substitution->end();
  check(!step(session, never).skipped, "the step after it is sound");
  check(session.optimizer->updates() == 2 && !state().equal(before), "training goes on");
  return faults;
}

// A weight, a moment and a copy that differ on one rank by a bit are found, and told the same on all ranks.
int run_differing(Session& session) {
  int faults = 0;
  const auto check = [&](bool holds, const std::string& what) {
    if (!holds) std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(session.mesh->rank()), what.c_str());
    faults += !holds;
  };
  static_cast<void>(step(session, [] { return false; }));
  check(find_differing_replica(session).empty(), "all replicas agree after a step");
  const size_t index = session.optimizer->parameters().size() / 2;
  const nn::Parameter& victim = *session.optimizer->parameters()[index];
  const int64_t odd = session.mesh->size() - 1;
  const auto with_flipped_bit = [&](const at::Tensor& tensor, const std::string& part) {
    auto* byte = static_cast<uint8_t*>(tensor.data_ptr()) + tensor.nbytes() / 2;
    if (session.mesh->rank() == odd) *byte ^= 1;
    const std::string found = find_differing_replica(session);
    check(found.find(part + " of " + std::string(victim.name())) != std::string::npos, part + ": " + found);
    // Of two ranks neither is in the majority.
    const std::string who =
        session.data_parallel->replicas().size() == 2 ? "each differ" : fmt::format("rank {} differs", odd);
    check(found.find(who) != std::string::npos, who + ": " + found);
    if (session.mesh->rank() == odd) *byte ^= 1;
    check(find_differing_replica(session).empty(), "and agree again");
  };
  with_flipped_bit(victim.master(), "weights");
  if (victim.copy().defined()) with_flipped_bit(victim.copy(), "copy of the weights that computes");
  with_flipped_bit(session.optimizer->moments()[index].exp_avg, "first moment");
  with_flipped_bit(session.optimizer->moments()[index].exp_avg_sq, "second moment");
  return faults;
}

// With other values the loss is another, and afterwards it is what it was, in every bit; so are resident values.
int run_substitution(Session& session) {
  int faults = 0;
  const auto check = [&](bool holds, const char* what) {
    if (!holds) std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(session.mesh->rank()), what);
    faults += !holds;
  };
  static_cast<void>(step(session, [] { return false; }));
  const auto loss = [&] {
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = at::arange(48).view({2, 24}), labels = tokens + 1;
    return models::loss(*session.model, tokens, labels, models::make_pass(2, 24, at::kCPU), {}).item<double>();
  };
  const auto values = [&] {
    std::vector<at::Tensor> copies;
    if (session.data_parallel->level() == parallel::Level::parameters) return copies;
    for (const nn::Parameter* parameter : session.model->parameters()) copies.push_back(parameter->value().clone());
    return copies;
  };
  const double before = loss();
  const std::vector<at::Tensor> kept = values();
  std::vector<at::Tensor> others;
  for (const nn::Parameter* parameter : session.model->parameters()) others.push_back(parameter->master() * 1.25);
  parallel::DataParallel::Substitution substitution(*session.data_parallel, others);
  check(std::isfinite(before) && loss() != before, "other values have another loss");
  substitution.end();
  check(loss() == before, "the loss is what it was");
  const std::vector<at::Tensor> now = values();
  for (size_t i = 0; i < kept.size(); ++i) check(kept[i].equal(now[i]), "a value is what it was");
  return faults;
}

// An exception on one rank in the midst of a collective, whichever: all others end by an error that names the rank and
// what it threw, within seconds. argv[5] is throw:N, the N-th time that a call is posted, about to be waited for or
// waited for on rank 1 (0: never); without an end by then, how often there were is left in OUT.
constexpr double kMostSeconds = 10;

struct Planted {
  int64_t at = 0, seen = 0;
};

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int run_thrown(Session& session, Planted& planted, const std::string& out) {
  const int64_t rank = session.mesh->rank();
  const auto never = [] { return false; };
  try {
    const checkpoint::Store store(out + ".run");
    for (int i = 0; i < 2; ++i) {
      static_cast<void>(step(session, never));
      save_checkpoint(session, store);
    }
  } catch (const std::exception& error) {
    const std::string what = error.what();
    if (rank == 1) {
      std::ofstream(out + ".thrown") << fmt::format("{:.3f}", monotonic_seconds());
      session.mesh->world().abort(what);
      for (const char* axis : {"data", "shard", "replicate"}) session.mesh->axis(axis).abort(what, false);
      return what == "planted" ? 0 : 1;
    }
    double thrown = 0;
    std::ifstream(out + ".thrown") >> thrown;
    const double seconds = monotonic_seconds() - thrown;
    if (what.find("rank 1") != std::string::npos && what.find("planted") != std::string::npos && seconds < kMostSeconds)
      return 0;
    std::fprintf(stderr, "rank %d after %.1f s: %s\n", static_cast<int>(rank), seconds, what.c_str());
    return 1;
  }
  if (planted.at != 0) {
    std::fprintf(stderr, "rank %d came to its end\n", static_cast<int>(rank));
    return 1;
  }
  if (rank == 1) std::ofstream(out) << planted.seen;
  return 0;
}

// Of a single rank: weights become what `ranks` would make of them that divide and quantise them, by operators of ATen.
void round_weights(Session& session, int64_t ranks) {
  const ops::QuantizedFormat format{8, session.config.parallel.quantize_block};
  for (const nn::Parameter* parameter : session.model->parameters()) {
    if (parameter->shape().size() == 1) continue;  // vectors travel in float
    for (int64_t r = 0; r < ranks; ++r) {
      const nn::Rows rows = nn::rows_of_rank(parameter->shape()[0], r, ranks);
      const at::Tensor part = parameter->master().narrow(0, rows.begin, rows.size()).view({-1});
      const at::Tensor packed = at::zeros({format.packed_bytes(part.numel())}, at::kByte);
      ops::reference::quantize(format, part, packed);
      ops::reference::dequantize(format, packed, part);
    }
  }
  session.data_parallel->refresh_weights();
}

// argv: --worker FOLDER SETTINGS OUT STEPS (or skip, ...)
int run_as_worker(char** argv) {
  config::Config config = make_config(argv[2], argv[3]);
  const comm::LaunchEnvironment environment = comm::detect_environment();
  at::set_num_threads(1);
  comm::ConnectOptions options;
  options.timeout = std::chrono::seconds(120);
  const char* delays = std::getenv("TRIREME_TEST_DELAYS");
  options.settings = std::make_shared<comm::GroupSettings>();
  if (delays != nullptr && *delays != '\0') {
    // Each rank is late at other moments, at most of 2 ms and mostly at none.
    const auto draw = std::make_shared<std::mt19937>(std::atoi(delays) * 64 + static_cast<int>(environment.rank));
    options.settings->disturb = [draw] {
      if ((*draw)() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds((*draw)() % 2000));
    };
  }
  const std::string mode = argv[5];
  const bool throws = mode.starts_with("throw:");
  Planted planted;
  bool training = false;
  if (throws) {
    planted.at = std::stoll(mode.substr(6));
    options.settings->disturb = [&] {
      if (training && environment.rank == 1 && ++planted.seen == planted.at) throw std::runtime_error("planted");
    };
  }
  const auto world = comm::connect(environment, options);
  const int64_t accumulation = config::resolve_world(config, environment.world_size);
  const auto session = make_session(config, accumulation, make_mesh(world, config.parallel));
  session->data_parallel->initialize(static_cast<uint64_t>(config.run.seed));
  start_loader(*session, {});
  if (const char* ranks = std::getenv("TRIREME_TEST_ROUNDED"); ranks != nullptr && *ranks != '\0')
    round_weights(*session, std::atoi(ranks));
  if (throws) {
    training = true;
    return run_thrown(*session, planted, argv[4]);
  }
  if (mode == "skip" || mode == "differing" || mode == "substitution") {
    const int faults = mode == "skip"        ? run_skip(*session)
                       : mode == "differing" ? run_differing(*session)
                                             : run_substitution(*session);
    world->barrier();
    return faults == 0 ? 0 : 1;
  }
  StepResult result;
  for (int i = 0; i < std::atoi(argv[5]); ++i) result = step(*session, [] { return false; });
  c10::Dict<std::string, at::Tensor> tensors;
  for (const nn::Parameter* parameter : session->model->trainable_parameters()) {
    // Gradients that are used at once are not kept: what was made of them.
    const bool used = config.optimizer.in_backward;
    const at::Tensor whole =
        session->data_parallel->gather(*parameter, used ? parameter->master() : parameter->gradient());
    int64_t row = 0;
    for (const nn::LogicalTensor& part : parameter->parts()) {
      tensors.insert(part.name, whole.narrow(0, row, part.shape[0]).reshape({-1}).clone());
      row += part.shape[0];
    }
  }
  if (environment.rank == 0) {
    tensors.insert("loss", at::tensor(result.loss, at::kDouble));
    tensors.insert("norm", at::tensor(result.grad_norm, at::kDouble));
    const std::vector<char> bytes = torch::jit::pickle_save(tensors);
    std::ofstream(argv[4], std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  world->barrier();
  return 0;
}

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

class Layouts : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("trireme_layouts_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    prepare_on_first_use(make_config(folder_, "train.micro_batch_size=12"), [](const std::string&) {});
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  std::map<std::string, at::Tensor> run(int workers, const std::string& settings, int steps) {
    const std::string out = folder_ / "gradients.pt";
    fs::remove(out);
    start(workers, settings, out, std::to_string(steps));
    std::map<std::string, at::Tensor> result;
    const std::string bytes = read_file(out);
    for (const auto& item : torch::jit::pickle_load({bytes.begin(), bytes.end()}).toGenericDict())
      result[item.key().toStringRef()] = item.value().toTensor();
    return result;
  }

  // Runs the ranks to their end, which must be good.
  static void start(int workers, const std::string& settings, const std::string& out, const std::string& steps) {
    const std::string port = std::to_string(free_port());
    std::vector<pid_t> children;
    for (int rank = 0; rank < workers; ++rank) {
      const std::string environment[] = {"RANK=" + std::to_string(rank),
                                         "WORLD_SIZE=" + std::to_string(workers),
                                         "LOCAL_RANK=" + std::to_string(rank),
                                         "LOCAL_WORLD_SIZE=" + std::to_string(workers),
                                         "MASTER_ADDR=127.0.0.1",
                                         "MASTER_PORT=" + port,
                                         "TRIREME_TEST_DELAYS=" + delays_,
                                         "TRIREME_TEST_ROUNDED=" + rounded_,
                                         "OMP_NUM_THREADS=1"};
      std::vector<std::string> arguments = {"test_layouts", "--worker", folder_, settings, out, steps};
      std::vector<char*> argv, envp;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      for (const std::string& variable : environment) envp.push_back(const_cast<char*>(variable.data()));
      argv.push_back(nullptr);
      envp.push_back(nullptr);
      pid_t child = 0;
      if (::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv.data(), envp.data()) != 0) {
        ADD_FAILURE() << "posix_spawn";
        continue;
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 0;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0) << workers << " workers: " << settings;
    }
  }

  static void compare(const std::map<std::string, at::Tensor>& expected, const std::map<std::string, at::Tensor>& got,
                      double tol, const std::string& row) {
    ASSERT_EQ(expected.size(), got.size()) << row;
    const double loss = expected.at("loss").item<double>(), norm = expected.at("norm").item<double>();
    EXPECT_NEAR(got.at("loss").item<double>(), loss, std::min(1e-6, tol * loss)) << row;
    EXPECT_NEAR(got.at("norm").item<double>(), norm, tol * norm) << row;
    const double floor = 1e-3 * norm / std::sqrt(static_cast<double>(expected.size() - 2));
    for (const auto& [name, a] : expected) {
      if (name == "loss" || name == "norm") continue;
      const double difference = (a.to(at::kDouble) - got.at(name).to(at::kDouble)).norm().item<double>();
      EXPECT_LE(difference, tol * std::max(a.to(at::kDouble).norm().item<double>(), floor)) << row << " " << name;
    }
  }

  static inline fs::path folder_;
  static inline std::string rounded_;  // as for so many ranks: weights are rounded beforehand; empty: they are not
  static inline std::string delays_;   // the seed of delays around each collective; empty: none
};

struct Row {
  int workers;
  const char* settings;
};
// 389 rows of vocabulary and 12 sequences: nothing divides evenly but the batch.
constexpr Row kRows[] = {{1, "train.micro_batch_size=4"}, {1, "train.micro_batch_size=12 train.recompute=full"},
                         {2, "train.micro_batch_size=6"}, {2, "train.micro_batch_size=2 train.recompute=full"},
                         {3, "train.micro_batch_size=4"}, {3, "train.micro_batch_size=1"},
                         {4, "train.micro_batch_size=3"}};

TEST_F(Layouts, EveryGradientOfTheFirstStepInFp64) {
  for (const char* tied : {" model.tied=false", " model.tied=true"}) {
    const std::string base = " train.precision=fp64" + std::string(tied);
    const auto expected = run(1, "train.micro_batch_size=12" + base, 1);
    for (const Row& row : kRows)
      compare(expected, run(row.workers, row.settings + base, 1), 1e-10,
              std::to_string(row.workers) + " " + row.settings + base);
  }
}

TEST_F(Layouts, EveryGradientOfTheFirstStepInFp32) {
  const std::string base = " train.precision=fp32 model.tied=true";
  const auto expected = run(1, "train.micro_batch_size=12" + base, 1);
  for (const Row& row : kRows)
    compare(expected, run(row.workers, row.settings + base, 1), 1e-5,
            std::to_string(row.workers) + " " + row.settings + base);
}

// Every architecture and everything that a step may have beside the plain loss: dropout's masks, documents, masked
// labels that make ranks unequal, z-loss, a ramp, fp16's scale. All are drawn or counted by sample, so the layout
// changes nothing.
TEST_F(Layouts, EveryGradientOfEachArchitectureAndOption) {
  const char* kOptions[] = {
      "model.architecture=gpt model.kv_heads=6 model.tied=true",
      "model.architecture=gpt model.kv_heads=6 model.tied=false model.dropout=0.2",
      "model.qkv_bias=true model.sliding_window=9 model.tied=true",
      "model.qk_norm=true model.rope_scaling.type=yarn model.rope_scaling.factor=2 model.dropout=0.1",
      // Long enough to hold borders of documents.
      "train.document_mask=true train.mask_document_starts=true train.z_loss=0.01 train.seq_len=256 "
      "model.max_seq_len=256",
      "model.architecture=gpt model.kv_heads=6 train.document_mask=true model.dropout=0.1 train.z_loss=0.01 "
      "train.seq_len=256 model.max_seq_len=256",
  };
  const Row rows[] = {{2, "train.micro_batch_size=2 train.recompute=selective"},
                      {3, "train.micro_batch_size=4"},
                      {4, "train.micro_batch_size=1 train.recompute=full"}};
  for (const char* options : kOptions) {
    const std::string base = " train.precision=fp64 " + std::string(options);
    const auto expected = run(1, "train.micro_batch_size=12" + base, 1);
    for (const Row& row : rows)
      compare(expected, run(row.workers, row.settings + base, 1), 1e-10,
              std::to_string(row.workers) + " " + row.settings + base);
    // An option that changed nothing would be the same on every layout.
    for (const std::string key :
         {"train.document_mask", "train.mask_document_starts", "train.z_loss", "model.dropout"}) {
      if (base.find(key + "=") == std::string::npos) continue;
      const std::string off = " " + key + (key.ends_with("mask") || key.ends_with("starts") ? "=false" : "=0");
      EXPECT_NE(run(1, "train.micro_batch_size=12" + base + off, 1).at("norm").item<double>(),
                expected.at("norm").item<double>())
          << off << base;
    }
  }
}

bool soak() {
  const char* variable = std::getenv("TRIREME_SOAK");
  return variable != nullptr && std::string(variable) == "1";
}

// What data ranks divide, over how many, and how: one after another with each way to accumulate, recompute and gather.
// 389 rows of vocabulary and 48 of norms over 2 to 5 ranks: shards of unequal size.
const char* const kLevels[] = {"optimizer", "gradients", "parameters"};
struct Sharded {
  int workers;
  const char* settings;
};
constexpr Sharded kSharded[] = {
    {1, "train.micro_batch_size=4"},
    {2, "train.micro_batch_size=6"},
    {2, "train.micro_batch_size=2 train.recompute=full"},
    {3, "train.micro_batch_size=4 train.recompute=selective"},
    {4, "train.micro_batch_size=1 parallel.shard_size=2"},
    {4, "train.micro_batch_size=3 train.recompute=full train.recompute_blocks=2"},
    {4, "train.micro_batch_size=3 parallel.shard_size=1"},
};
constexpr Sharded kGathered[] = {
    {2, "train.micro_batch_size=2 parallel.prefetch=0"},
    {2, "train.micro_batch_size=3 parallel.prefetch=0 train.recompute=full train.recompute_blocks=3"},
    {3, "train.micro_batch_size=2 parallel.prefetch=2"},
    {2, "train.micro_batch_size=2 parallel.prefetch=7 parallel.reshard_after_forward=false"},
    {4, "train.micro_batch_size=1 parallel.shard_size=2 parallel.reduce_every_micro_batch=false"},
    {4, "train.micro_batch_size=3 parallel.reshard_after_forward=2"},
    {4, "train.micro_batch_size=1 parallel.reshard_after_forward=2 parallel.prefetch=0 train.recompute=full"},
    {4, "train.micro_batch_size=1 parallel.reshard_after_forward=2 train.recompute=full train.recompute_blocks=2"},
};

TEST_F(Layouts, EveryGradientAtEachLevelOfSharding) {
  int next = 0;
  const auto wanted = [&] { return soak() || next++ % 4 == 0; };  // four divides none of the numbers of rows
  for (const char* tied : {"model.tied=false", "model.tied=true", "model.architecture=gpt model.kv_heads=6"}) {
    for (const auto& [precision, tol] : {std::pair("fp64", 1e-10), std::pair("fp32", 1e-5)}) {
      const std::string base = fmt::format(" train.precision={} {}", precision, tied);
      const auto expected = run(1, "train.micro_batch_size=12" + base, 1);
      for (const char* level : kLevels) {
        const std::string more = base + " parallel.shard=" + level;
        for (const Sharded& row : kSharded)
          if (wanted())
            compare(expected, run(row.workers, row.settings + more, 1), tol,
                    std::to_string(row.workers) + " " + row.settings + more);
        if (std::string(level) != "parameters") continue;
        for (const Sharded& row : kGathered)
          if (wanted())
            compare(expected, run(row.workers, row.settings + more, 1), tol,
                    std::to_string(row.workers) + " " + row.settings + more);
      }
    }
  }
}

// Kept and exchanged in bf16 they are those in fp32, rounded: once for each micro-batch that is added, and once after
// the sum over ranks.
TEST_F(Layouts, GradientsInBf16AreRounded) {
  constexpr double kRounding = 1.0 / 256;
  for (const char* model : {" model.tied=true", " model.architecture=gpt model.kv_heads=6 model.tied=false"}) {
    const std::string base = std::string(" train.precision=bf16") + model, narrow = " train.gradient_dtype=bf16";
    for (const auto& [workers, micro_batch, micro_batches] : {std::tuple(1, 12, 1), {2, 6, 1}, {2, 2, 3}, {3, 1, 4}}) {
      const std::string batch = fmt::format("train.micro_batch_size={}", micro_batch) + base;
      const auto expected = run(workers, batch, 1), none = run(workers, batch + narrow, 1);
      const double tol = kRounding * (1 + micro_batches);
      for (const auto& [name, a] : expected) {
        if (name == "loss" || name == "norm") continue;
        const at::Tensor wide = a.to(at::kDouble), rounded = none.at(name).to(at::kDouble);
        EXPECT_EQ(none.at(name).scalar_type(), at::kBFloat16);
        // GPT's key biases are zero in theory.
        const double floor = 1e-3 * expected.at("norm").item<double>() / std::sqrt(expected.size() - 2.0);
        const double difference = (wide - rounded).norm().item<double>();
        EXPECT_LE(difference, tol * std::max(wide.norm().item<double>(), floor)) << batch << " " << name;
        EXPECT_GT(difference, 0) << batch << " " << name;
      }
      for (const char* level : kLevels) {
        if (workers == 1) continue;
        const auto divided = run(workers, batch + narrow + " parallel.shard=" + level, 1);
        for (const auto& [name, a] : none) {
          if (name == "norm" || name == "loss") continue;
          const at::Tensor wide = a.to(at::kDouble), other = divided.at(name).to(at::kDouble);
          if (micro_batches == 1 || std::string(level) == "optimizer") {
            EXPECT_TRUE(other.equal(wide)) << batch << " " << level << " " << name;
          } else {
            const double least = 1e-3 * expected.at("norm").item<double>();
            EXPECT_LE((other - wide).norm().item<double>(), tol * std::max(wide.norm().item<double>(), least))
                << batch << " " << level << " " << name;
          }
        }
      }
    }
  }
}

// Every gradient of ranks that gather quantised weights is that of one rank with the weights that they should then
// have.
TEST_F(Layouts, EveryGradientWithQuantizedWeights) {
  const Sharded rows[] = {
      {2, "train.micro_batch_size=6"},
      {3, "train.micro_batch_size=4 train.recompute=full"},
      {4, "train.micro_batch_size=1 parallel.prefetch=2"},
      {4, "train.micro_batch_size=3 parallel.reshard_after_forward=2"},
      {4, "train.micro_batch_size=1 parallel.reshard_after_forward=2 train.recompute=full parallel.prefetch=0"},
      {2, "train.micro_batch_size=2 parallel.reshard_after_forward=false parallel.quantize_block=64"},
  };
  int next = 0;
  for (const char* tied : {" model.tied=true", " model.tied=false train.frozen=[\"blocks.1.*\",\"norm.weight\"]"}) {
    for (const Sharded& row : rows) {
      if (!soak() && next++ % 2 == 1) continue;
      const std::string base = std::string(" train.precision=fp32") + tied;
      const std::string quantized = row.settings + base + " parallel.shard=parameters parallel.quantize_weights=int8";
      const auto got = run(row.workers, quantized, 1);
      const auto exact = run(1, "train.micro_batch_size=12" + base, 1);
      const std::string settings(row.settings);
      const size_t block = settings.find("quantize_block");
      rounded_ = std::to_string(row.workers);
      // The single rank has no such option; it rounds in the same blocks.
      const auto expected = run(
          1,
          "train.micro_batch_size=12" + base +
              (block == std::string::npos
                   ? ""
                   : " parallel.shard=parameters parallel.quantize_weights=int8 parallel." + settings.substr(block)),
          1);
      rounded_.clear();
      compare(expected, got, 1e-5, std::to_string(row.workers) + " " + quantized);
      EXPECT_NE(exact.at("loss").item<double>(), got.at("loss").item<double>()) << "nothing was rounded: " << quantized;
    }
  }
}

// Quantised sums have the error of their blocks, on whatever axes they go; and what is late changes no bit.
TEST_F(Layouts, QuantizedGradientsAreNearTheExactOnes) {
  const struct {
    int workers;
    const char* settings;
    double of_norm;  // the error may be so much of a gradient's norm
  } rows[] = {
      {2, "train.micro_batch_size=2 parallel.shard=parameters parallel.quantize_gradients=int8", 0.02},
      {3, "train.micro_batch_size=4 parallel.shard=optimizer parallel.quantize_gradients=int8", 0.02},
      {4,
       "train.micro_batch_size=1 parallel.shard=gradients parallel.quantize_gradients=int4 parallel.quantize_block=32",
       0.15},
      {4,
       "train.micro_batch_size=1 parallel.shard=parameters parallel.shard_size=2 parallel.quantize_gradients=int8 "
       "parallel.quantize_error_feedback=true",
       0.02},
      {4,
       "train.micro_batch_size=1 parallel.shard=gradients parallel.reduce_every_micro_batch=false "
       "parallel.quantize_gradients=int8 train.frozen=[\"blocks.1.*\"]",
       0.02},
  };
  for (const auto& row : rows) {
    const std::string settings = row.settings, base = " train.precision=fp32 model.tied=true ";
    const size_t frozen = settings.find("train.frozen");
    const auto expected =
        run(1, "train.micro_batch_size=12" + base + (frozen == std::string::npos ? "" : settings.substr(frozen)), 1);
    const auto got = run(row.workers, settings + base, 1);
    ASSERT_EQ(expected.size(), got.size()) << settings;
    EXPECT_NEAR(got.at("loss").item<double>(), expected.at("loss").item<double>(), 1e-6) << settings;
    // Of what is stored as one matrix: blocks go across the rows of queries, keys and values, and gradients of keys are
    // far smaller than the others here.
    struct Sums {
      double error = 0, gradient = 0;
    };
    std::map<std::string, Sums> stored;
    for (const auto& [name, gradient] : expected) {
      if (name == "loss" || name == "norm") continue;
      const size_t part = std::min(
          {name.find(".q."), name.find(".k."), name.find(".v."), name.find(".gate."), name.find(".up."), name.size()});
      Sums& sums = stored[name.substr(0, part)];
      sums.error += (gradient - got.at(name)).square().sum().item<double>();
      sums.gradient += gradient.square().sum().item<double>();
    }
    double worst = 0;
    for (const auto& [name, sums] : stored) {
      const double error = std::sqrt(sums.error / sums.gradient);
      EXPECT_LE(error, row.of_norm) << settings << " " << name;
      worst = std::max(worst, error);
    }
    EXPECT_GT(worst, 1e-4) << "nothing was rounded: " << settings;
    delays_ = "3";
    const auto late = run(row.workers, settings + base, 1);
    delays_.clear();
    for (const auto& [name, gradient] : got) EXPECT_TRUE(late.at(name).equal(gradient)) << settings << " " << name;
  }
}

// Gradients of what is left are those of a run that freezes nothing: a frozen weight passes them on.
TEST_F(Layouts, FrozenWeightsHaveNoGradientAndChangeNoOther) {
  const std::string base = " train.precision=fp64 model.tied=true";
  const auto all = run(1, "train.micro_batch_size=12" + base, 1);
  const std::string frozen = " train.frozen=[\"blocks.1.*\",\"norm.weight\",\"blocks.*.feed_forward.down.weight\"]";
  auto expected = run(1, "train.micro_batch_size=12" + base + frozen, 1);
  EXPECT_EQ(expected.size(), all.size() - 9 - 1 - 2);
  for (const auto& [name, gradient] : expected) {
    if (name == "norm") continue;
    EXPECT_TRUE(gradient.equal(all.at(name))) << name;
  }
  for (const char* level : {"none", "optimizer", "gradients", "parameters"}) {
    const std::string more = base + frozen + " parallel.shard=" + level;
    for (const Sharded& row : {kSharded[1], kSharded[3], kSharded[4]})
      if (std::string(level) != "none" || std::string(row.settings).find("shard_size") == std::string::npos)
        compare(expected, run(row.workers, row.settings + more, 1), 1e-10,
                std::to_string(row.workers) + " " + row.settings + more);
  }
  // A whole unit, the tied one: nothing of it is exchanged.
  const std::string ends = " train.frozen=[\"embed.weight\",\"norm.weight\"]";
  compare(run(1, "train.micro_batch_size=12" + base + ends, 3),
          run(2, "train.micro_batch_size=3 parallel.shard=parameters" + base + ends, 3), 1e-9, ends);
}

// After updates: what an update left undone, or a weight that was gathered too early, would show.
TEST_F(Layouts, EveryGradientOfTheThirdStepAtEachLevel) {
  const std::string base = " train.precision=fp64 model.tied=true train.ema_decay=0.9";
  const auto expected = run(1, "train.micro_batch_size=12" + base, 3);
  int next = 0;
  for (const char* level : kLevels) {
    const std::string more = base + " parallel.shard=" + level;
    for (const Sharded& row : kSharded)
      if (soak() || next++ % 2 == 0)
        compare(expected, run(row.workers, row.settings + more, 3), 1e-9,
                std::to_string(row.workers) + " " + row.settings + more + ", step 3");
  }
}

// Whoever is late, and when: what is gathered, reduced and updated too early or too late would show in some bit.
TEST_F(Layouts, DelaysAroundCollectivesChangeNoBit) {
  const std::string base = " train.precision=bf16 model.tied=false train.micro_batch_size=2 parallel.shard=";
  const char* rows[] = {"parameters", "parameters parallel.prefetch=0 train.recompute=full",
                        // On 4 workers: both axes.
                        "parameters optimizer.in_backward=true train.clip_grad_norm=0 train.global_batch_size=8 "
                        "parallel.shard_size=2 train.recompute=full train.recompute_blocks=2 model.layers=5",
                        "optimizer", "gradients parallel.shard_size=1", "parameters parallel.quantize_weights=int8",
                        "parameters parallel.prefetch=2 train.recompute=full "
                        "train.recompute_blocks=2",
                        "optimizer optimizer.in_backward=true train.clip_grad_norm=0 train.global_batch_size=6",
                        "parameters optimizer.in_backward=true train.clip_grad_norm=0 train.global_batch_size=6 "
                        "parallel.shard_size=1"};
  const int seeds = soak() ? 20 : 1;
  for (const char* row : rows) {
    delays_.clear();
    const int workers = std::string(row).find("global_batch_size=8") != std::string::npos ? 4 : 3;
    const auto expected = run(workers, base.substr(1) + row, 3);
    for (int seed = 1; seed <= seeds; ++seed) {
      delays_ = std::to_string(seed);
      const auto late = run(workers, base.substr(1) + row, 3);
      ASSERT_EQ(late.size(), expected.size());
      for (const auto& [name, tensor] : expected)
        EXPECT_TRUE(late.at(name).equal(tensor)) << name << " " << row << " " << seed;
    }
  }
  delays_.clear();
  // Groups of neighbours that gather for themselves, each at its own time; and two axes on which rounded sums wait for
  // room, with more units than there is room for and messages of more than a page.
  const std::string second = base.substr(1) + "parameters train.micro_batch_size=1 ";
  for (const char* more :
       {"parallel.reshard_after_forward=2",
        "parallel.reshard_after_forward=2 parallel.quantize_weights=int8 parallel.prefetch=0 train.recompute=full",
        "parallel.shard_size=2 parallel.quantize_gradients=int8 parallel.quantize_error_feedback=true model.layers=7 "
        "model.hidden=96 train.global_batch_size=8"}) {
    const auto expected = run(4, second + more, 3);
    for (int seed = 1; seed <= seeds; ++seed) {
      delays_ = std::to_string(seed);
      const auto late = run(4, second + more, 3);
      delays_.clear();
      for (const auto& [name, tensor] : expected) EXPECT_TRUE(late.at(name).equal(tensor)) << name << more << seed;
    }
  }
}

TEST_F(Layouts, ARampHasTheSameBatchesOnAnyNumberOfWorkers) {
  const std::string base =
      " train.precision=fp64 batch_ramp.start=4 batch_ramp.increment=4 batch_ramp.samples=16 model.dropout=0.1";
  for (const int steps : {1, 3, 4}) {  // 4, 4 and 8 sequences, then 12
    const auto expected = run(1, "train.micro_batch_size=4" + base, steps);
    for (const char* row : {"2 train.micro_batch_size=1", "2 train.micro_batch_size=2", "4 train.micro_batch_size=1"})
      compare(expected, run(row[0] - '0', row + 2 + base, steps), steps == 1 ? 1e-10 : 1e-9,
              std::string(row) + " step " + std::to_string(steps));
  }
}

// After two updates: a fault in how weights are updated on other ranks than the first would show in their gradients.
TEST_F(Layouts, EveryGradientOfTheThirdStep) {
  const std::string base = " train.precision=fp64 model.tied=true";
  const auto expected = run(1, "train.micro_batch_size=12" + base, 3);
  for (const int workers : {2, 3, 4})
    compare(expected, run(workers, "train.micro_batch_size=" + std::to_string(12 / workers) + base, 3), 1e-9,
            std::to_string(workers) + " workers, step 3");
}

TEST_F(Layouts, ABitThatDiffersOnOneReplicaIsFoundAndNamed) {
  const std::string base = "train.micro_batch_size=1 train.precision=";
  start(3, base + "bf16", "", "differing");
  start(2, base + "fp32", "", "differing");
  start(4, base + "bf16 parallel.shard=optimizer parallel.shard_size=2", "", "differing");
  start(3, base + "fp32 parallel.shard=parameters parallel.shard_size=1 train.frozen=[\"embed.weight\"]", "",
        "differing");
}

TEST_F(Layouts, AnExceptionOnOneRankEndsAllOthersByItsName) {
  std::mt19937 draw(7);
  for (const char* level : {"parameters", "optimizer", "gradients parallel.shard_size=1",
                            "parameters parallel.shard_size=2 optimizer.in_backward=true train.clip_grad_norm=0 "
                            "train.global_batch_size=8"}) {
    const int workers = std::string(level).find("global_batch_size=8") != std::string::npos ? 4 : 3;
    const std::string out = folder_ / "thrown";
    const std::string settings =
        fmt::format("train.micro_batch_size=2 train.precision=bf16 comm.timeout_s=30 parallel.shard={}", level);
    const auto start_anew = [&](int64_t at) {
      for (const char* suffix : {"", ".thrown", ".run"}) fs::remove_all(out + suffix);
      start(workers, settings, out, fmt::format("throw:{}", at));
    };
    start_anew(0);
    int64_t calls = 0;
    std::ifstream(out) >> calls;
    ASSERT_GT(calls, 40) << level;
    const int64_t tries = soak() ? 25 : 3;
    for (int64_t i = 0; i < tries; ++i) {  // one in each part of the run
      const int64_t at = 1 + calls * i / tries + static_cast<int64_t>(draw() % static_cast<uint64_t>(calls / tries));
      SCOPED_TRACE(fmt::format("{}, call {} of {}", level, at, calls));
      start_anew(at);
    }
  }
}

TEST_F(Layouts, OtherValuesStandForWeightsForAWhile) {
  for (const char* level : {"none", "optimizer", "parameters"})
    for (const char* precision : {"bf16", "fp32"})
      start(3,
            fmt::format("train.micro_batch_size=2 train.precision={} parallel.shard={} train.frozen=[\"norm.weight\"]",
                        precision, level),
            "", "substitution");
}

// Norms of 4 rows over 5 ranks: some hold nothing of them.
TEST_F(Layouts, FewerRowsThanRanks) {
  const std::string base =
      " train.precision=fp64 model.hidden=20 model.heads=5 model.kv_heads=5 model.qk_norm=true "
      "train.global_batch_size=10";
  const auto expected = run(1, "train.micro_batch_size=10" + base, 2);
  for (const char* level : kLevels)
    compare(expected, run(5, "train.micro_batch_size=1" + base + " parallel.shard=" + level, 2), 1e-9, level);
}

TEST_F(Layouts, AStepThatIsNotFiniteIsSkippedEverywhereAndTrainingGoesOn) {
  for (const int workers : {1, 3})
    for (const char* level : {"none", "optimizer", "parameters"})
      start(workers,
            fmt::format("train.micro_batch_size={} train.precision=bf16 parallel.shard={}", 12 / workers, level), "",
            "skip");
  // What is not finite stays so in what travels in 8 bits.
  start(3,
        "train.micro_batch_size=4 train.precision=bf16 parallel.shard=parameters parallel.quantize_weights=int8 "
        "parallel.quantize_gradients=int8 parallel.quantize_error_feedback=true",
        "", "skip");
}

// The measure can fail: another batch has other gradients.
TEST_F(Layouts, AnotherSeedHasOtherGradients) {
  const std::string base = "train.micro_batch_size=12 train.precision=fp64 model.tied=true";
  const auto a = run(1, base, 1), b = run(1, base + " run.seed=7", 1);
  double difference = 0;
  for (const auto& [name, tensor] : a)
    if (name != "loss" && name != "norm")
      difference = std::max(difference, (tensor - b.at(name)).abs().max().item<double>());
  EXPECT_GT(difference, 1e-3);
}

}  // namespace
}  // namespace trireme::train

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--worker") return trireme::train::run_as_worker(argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
