#include "train/bench_step.h"

#include <ATen/ATen.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/random.h"
#include "data/shard.h"
#include "memory/process_memory.h"
#include "observe/matmul_rate.h"
#include "train/session.h"
#include "train/step.h"
#include "train/time_calls.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

// A folder that goes with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (fs::temp_directory_path() / "trireme-bench-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw_errno("make", path, errno);
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Token shards that are no text: enough for the samples of `steps` steps, of documents as long as two samples.
void write_random_tokens(const fs::path& folder, const config::Config& config, int64_t steps) {
  const int64_t vocab = config.model.vocab, length = 2 * config.train.seq_len;
  data::Manifest manifest;
  manifest.tokenizer_hash = "random tokens";
  manifest.vocab_size = vocab;
  manifest.end_of_text = static_cast<int32_t>(vocab - 1);
  manifest.id_bytes = vocab <= 65536 ? 2 : 4;
  data::ShardWriter writer(manifest.id_bytes);
  const random::Key key = random::make_key(static_cast<uint64_t>(config.run.seed), "bench/tokens");
  std::vector<int32_t> ids(static_cast<size_t>(length));
  const int64_t documents = steps * config.train.global_batch_size + 1;
  uint64_t drawn = 0;
  for (int64_t document = 0; document < documents; ++document) {
    for (int32_t& id : ids)
      id = static_cast<int32_t>(random::below(key, drawn++, static_cast<uint64_t>(std::max<int64_t>(vocab - 1, 1))));
    ids.back() = manifest.end_of_text;
    writer.add({}, "random", ids);
  }
  manifest.shards.push_back(writer.write(folder / "shard-00000.tokens"));
  data::write_manifest(folder, manifest);
}

int64_t page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

}  // namespace

double StepBench::median_s() const { return quantile(step_s, 0.5); }
double StepBench::p95_s() const { return quantile(step_s, 0.95); }

StepBench bench_step(config::Config config, const StepBenchOptions& options) {
  if (config.run.device != config::Device::cpu)
    throw_input("run.device = \"{}\": this benchmark measures memory and time of the CPU; run.device = \"cpu\" works",
                config::name_of(config.run.device));
  const int64_t accumulation = config::resolve_world(config, 1);
  if (config.memory.caching_allocator && !memory::caching_allocator_installed()) memory::install_caching_allocator();

  StepBench bench;
  const TemporaryFolder folder;
  config.run.dir = folder.path() / "run";
  config.data.eval_path.clear();
  config.eval.sets.clear();
  config.eval.choices.clear();
  bench.random_tokens = !fs::exists(config.data.path / "manifest.json");
  if (bench.random_tokens) {
    config.data.path = folder.path();
    write_random_tokens(folder.path(), config, options.warmup_steps + options.steps);
  }

  const auto world = comm::Communicator::solo("world");
  const std::unique_ptr<Session> session = make_session(config, accumulation, make_mesh(world, config.parallel));
  session->data_parallel->initialize(static_cast<uint64_t>(config.run.seed));
  start_loader(*session, {});
  bench.flops_per_token = describe::model_flops_per_token(config.model, config.train.seq_len);
  bench.matmul_flops_per_second =
      observe::measure_matmul_rate(activation_type(config.train.precision)).flops_per_second;
  memory::release_cached();  // as a run does
  bench.beside = memory::beside_blocks();

  const auto one = [&] { return step(*session, [] { return false; }); };
  for (int64_t i = 0; i < options.warmup_steps; ++i) one();
  memory::reset_peak();
  const int64_t faults = page_faults(), calls = memory::allocator_statistics().system_calls;
  for (int64_t i = 0; i < options.steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const StepResult result = one();
    bench.step_s.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    bench.tokens = result.tokens;
    bench.loss = result.loss;
    bench.kept_activation_bytes = result.kept_activation_bytes;
  }
  bench.tensors = memory::allocator_statistics();
  const auto steps = static_cast<double>(options.steps);
  bench.page_faults = static_cast<double>(page_faults() - faults) / steps;
  bench.system_allocations = static_cast<double>(bench.tensors.system_calls - calls) / steps;
  bench.peak_resident_bytes = memory::peak_resident_bytes();
  return bench;
}

}  // namespace trireme::train
