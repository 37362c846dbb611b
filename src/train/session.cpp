#include "train/session.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/error.h"
#include "base/log.h"
#include "config/batch_ramp.h"
#include "memory/purpose.h"
#include "ops/dispatch.h"

namespace trireme::train {
namespace {

// How messages call a held-out set.
std::string in_config(const config::NamedPath& set) {
  return set.name.empty() ? fmt::format("data.eval_path = {}", set.path.string())
                          : fmt::format("{} of eval.sets", config::to_text(set));
}

// Zeros for master weights that are offloaded; empty: none is.
std::function<at::Tensor(at::IntArrayRef, at::ScalarType)> master_memory(const config::Config& config,
                                                                         memory::FileTensors* file) {
  const at::ScalarType dtype = activation_type(config.train.precision);
  if (dtype == ops::compute_type(dtype)) return {};  // they are the weights that compute
  switch (config.optimizer.offload) {
    case config::Offload::none:
      return {};
    case config::Offload::host:
      return [](at::IntArrayRef sizes, at::ScalarType dtype) {
        const memory::TierScope host(memory::Tier::host);
        return at::zeros(sizes, dtype);
      };
    case config::Offload::disk:
      return [file](at::IntArrayRef sizes, at::ScalarType dtype) { return file->zeros(sizes, dtype); };
  }
  throw_internal("offload {}", static_cast<int>(config.optimizer.offload));
}

parallel::DataParallelOptions data_parallel_options(const config::Config& config, memory::FileTensors* state_file) {
  const config::ParallelConfig& parallel = config.parallel;
  static_assert(static_cast<int>(parallel::Level::parameters) == static_cast<int>(config::Shard::parameters));
  // Divided by one, nothing is: the weights would only be there twice.
  const config::Shard shard = parallel.shard_size == 1 ? config::Shard::none : parallel.shard;
  // So it is with what travels quantised to other ranks: there are none.
  const auto format = [&](config::Quantize quantize) -> std::optional<ops::QuantizedFormat> {
    if (quantize == config::Quantize::none || shard == config::Shard::none) return std::nullopt;
    return ops::QuantizedFormat{.bits = quantize == config::Quantize::int8 ? 8 : 4, .block = parallel.quantize_block};
  };
  return {.level = static_cast<parallel::Level>(shard),
          .prefetch = parallel.prefetch,
          .reshard_after_forward = parallel.reshard_after_forward.after_forward,
          .second_shard_ranks = parallel.reshard_after_forward.group,
          .quantized_weights = format(parallel.quantize_weights),
          .quantized_gradients = format(parallel.quantize_gradients),
          .error_feedback = parallel.quantize_error_feedback,
          .reduce_every_micro_batch = parallel.reduce_every_micro_batch,
          .tree = config.run.reproducible == config::Reproducible::any_workers,
          .master_memory = master_memory(config, state_file),
          .narrow_gradients = config.train.gradient_dtype == "bf16",
          .use_at_once = config.optimizer.in_backward};
}

std::filesystem::path offload_folder(const config::Config& config) {
  return config.run.offload_dir.empty() ? config.run.dir / "offload" : config.run.offload_dir;
}

// Opens all data. Everything wrong with it, and between it and the model, at once.
void open_data(Session& session) {
  const config::Config& config = session.config;
  session.dataset = data::Dataset::open(config.data.path);
  const data::Dataset& train = *session.dataset;
  std::vector<std::string> faults;
  const auto check_vocabulary = [&](const data::Dataset& set, const std::string& what) {
    if (set.vocab_size() > config.model.vocab)
      faults.push_back(
          fmt::format("{} was prepared with a tokenizer of {} tokens, but model.vocab = {}; model.vocab = {} would "
                      "fit, or prepare the data with a smaller tokenizer",
                      what, set.vocab_size(), config.model.vocab, set.vocab_size()));
  };
  check_vocabulary(train, fmt::format("data.path = {}", train.folder().string()));
  for (const config::NamedPath& set : held_out_sets(config)) {
    try {
      session.held_out.push_back({set.name, data::Dataset::open(set.path)});
    } catch (const InputError& error) {
      faults.push_back(fmt::format("{}: {}", in_config(set), error.what()));
      continue;
    }
    const data::Dataset& held_out = *session.held_out.back().dataset;
    check_vocabulary(held_out, in_config(set));
    if (held_out.tokenizer_hash() != train.tokenizer_hash())
      faults.push_back(
          fmt::format("{} was prepared with another tokenizer than data.path = {}; prepare both with the same one",
                      in_config(set), train.folder().string()));
  }
  if (const std::vector<config::NamedPath> files = choice_files(config); !files.empty()) {
    try {
      const data::Tokenizer tokenizer = data::Tokenizer::load(train.tokenizer_folder());
      session.choices = read_suites(files, tokenizer, config.model.max_seq_len, faults);
    } catch (const InputError& error) {
      faults.insert(faults.end(), error.faults().begin(), error.faults().end());
    }
  }
  if (!faults.empty()) throw InputError(faults);
}

}  // namespace

std::vector<config::NamedPath> held_out_sets(const config::Config& config) {
  std::vector<config::NamedPath> sets;
  if (!config.data.eval_path.empty()) sets.push_back({"", config.data.eval_path});
  for (const std::string& text : config.eval.sets) sets.push_back(config::to_named_path(text));
  return sets;
}

std::vector<config::NamedPath> choice_files(const config::Config& config) {
  std::vector<config::NamedPath> files;
  for (const std::string& text : config.eval.choices) files.push_back(config::to_named_path(text));
  return files;
}

at::ScalarType activation_type(config::Precision precision) {
  switch (precision) {
    case config::Precision::bf16:
      return at::kBFloat16;
    case config::Precision::fp16:
      return at::kHalf;
    case config::Precision::fp32:
      return at::kFloat;
    case config::Precision::fp64:
      return at::kDouble;
  }
  throw_internal("precision {}", static_cast<int>(precision));
}

std::shared_ptr<comm::Mesh> make_mesh(std::shared_ptr<comm::Communicator> world,
                                      const config::ParallelConfig& parallel) {
  comm::MeshSizes sizes;
  sizes.shard = parallel.shard_size;
  sizes.replicate = parallel.replicas();
  const bool named = parallel.order.size() == 1;
  return std::make_shared<comm::Mesh>(std::move(world), sizes,
                                      named ? comm::named_order(parallel.order[0]) : parallel.order);
}

at::Device choose_device(config::Device device) {
  if (device == config::Device::cpu) return at::kCPU;
  if (!at::hasCUDA())
    throw_input(
        "run.device = \"cuda\", but this build of torch, or this machine, has no CUDA device; run.device = \"cpu\" "
        "works");
  return c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();  // with several workers, the one that NCCL was given
}

std::unique_ptr<Session> make_session(const config::Config& config, int64_t accumulation,
                                      std::shared_ptr<comm::Mesh> mesh) {
  auto session = std::make_unique<Session>();
  Session& s = *session;
  s.config = config;
  s.accumulation = accumulation;
  s.mesh = std::move(mesh);
  s.device = choose_device(config.run.device);
  open_data(s);
  s.model = models::make_model(config.model, activation_type(config.train.precision));
  s.model->freeze(config.train.frozen);
  if (config.optimizer.offload == config::Offload::disk)
    s.state_file = std::make_unique<memory::FileTensors>(offload_folder(config), "the optimizer's state",
                                                         "optimizer.offload = \"disk\"");
  s.data_parallel =
      std::make_unique<parallel::DataParallel>(*s.model, s.mesh->axis("shard"), s.mesh->axis("replicate"), s.device,
                                               data_parallel_options(config, s.state_file.get()));
  s.optimizer = std::make_unique<optim::Adamw>(s.model->trainable_parameters(), config.optimizer, s.state_file.get());
  if (s.state_file != nullptr && !s.state_file->direct() && s.first_rank())
    log::warning(
        "the file system of {} (run.offload_dir) does not read and write past the page cache: the optimizer's state "
        "passes through it, "
        "and where it is memory itself (tmpfs) nothing is gained",
        offload_folder(config).string());
  if (config.train.activation_offload == config::Offload::host) s.offload = std::make_shared<nn::ActivationStore>();
  if (config.train.activation_offload == config::Offload::disk)
    s.offload = std::make_shared<nn::ActivationStore>(offload_folder(config));
  if (config.train.ema_decay > 0) s.ema = std::make_unique<optim::Ema>(s.model->parameters(), config.train.ema_decay);
  s.loss_scaler = std::make_unique<optim::LossScaler>(config.loss_scale, config.train.precision);
  s.spike_guard = std::make_unique<optim::SpikeGuard>(config.spike_guard);
  return session;
}

void start_loader(Session& session, const data::LoaderState& state) {
  const config::Config& config = session.config;
  const comm::Communicator& data = session.mesh->data();
  data::LoaderOptions options;
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.seq_len = config.train.seq_len;
  options.micro_batch_size = config.train.micro_batch_size;
  options.accumulation = session.accumulation;
  options.accumulation_at = [config, ranks = data.size()](uint64_t position) {
    return config::batch_size_at(config, static_cast<int64_t>(position)) / (config.train.micro_batch_size * ranks);
  };
  if (config.run.reproducible == config::Reproducible::any_workers)
    options.place = [order = session.data_parallel->micro_batch_order()](int64_t batch, int64_t batches) {
      return order.index(batch, batches);
    };
  options.mask_document_starts = config.train.mask_document_starts;
  options.data_rank = data.rank();
  options.data_ranks = data.size();
  options.deadline = std::chrono::milliseconds(static_cast<int64_t>(config.comm.timeout_s * 1000));
  session.loader = std::make_unique<data::Loader>(session.dataset, options, state);
}

}  // namespace trireme::train
