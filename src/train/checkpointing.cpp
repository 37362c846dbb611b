#include "train/checkpointing.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "ops/dispatch.h"
#include "ops/sum_of_squares.h"
#include "train/coordination.h"
#include "train/model_json.h"

namespace trireme::train {
namespace {

DType dtype_of(const at::Tensor& tensor) { return tensor.scalar_type() == at::kDouble ? DType::f64 : DType::f32; }

// Fragments of tensors that have a parameter's layout: its master, or a moment of it.
struct Holding {
  std::string prefix;
  const nn::Parameter* parameter;
  at::Tensor tensor;
};

// The weights of a model, from its tensors or from their moving averages.
std::vector<Holding> weights_of(const models::Model& model, Weights weights = Weights::trained) {
  std::vector<Holding> holdings;
  for (const nn::Parameter* parameter : model.parameters())
    holdings.push_back({prefix_of(weights), parameter, parameter->master()});
  return holdings;
}

std::vector<Holding> everything_of(const Session& session) {
  std::vector<Holding> holdings = weights_of(*session.model);
  const optim::Adamw& optimizer = *session.optimizer;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    holdings.push_back({"optimizer.exp_avg.", optimizer.parameters()[i], optimizer.moments()[i].exp_avg});
    holdings.push_back({"optimizer.exp_avg_sq.", optimizer.parameters()[i], optimizer.moments()[i].exp_avg_sq});
  }
  for (size_t i = 0; session.ema && i < session.ema->parameters().size(); ++i)
    holdings.push_back({prefix_of(Weights::average), session.ema->parameters()[i], session.ema->averages()[i]});
  return holdings;
}

// Calls visit(holding, fragment, pointer to its first element) for each fragment; tensors of a device go over the host.
template <typename Visit>
void for_each_fragment(const std::vector<Holding>& holdings, Visit visit) {
  for (const Holding& holding : holdings) {
    auto* data = static_cast<std::byte*>(holding.tensor.data_ptr());
    for (const nn::Fragment& fragment : holding.parameter->fragments())
      visit(holding, fragment, data + fragment.local_offset * static_cast<int64_t>(holding.tensor.element_size()));
  }
}

// A device's tensors as they are on the host, and back again after loading.
std::vector<Holding> on_host(const std::vector<Holding>& holdings) {
  std::vector<Holding> result = holdings;
  for (Holding& holding : result) holding.tensor = holding.tensor.to(at::kCPU);
  return result;
}

// The whole model and optimizer of a checkpoint, neither more nor less.
void require_the_same_tensors(const checkpoint::CheckpointReader& reader, const std::vector<Holding>& holdings) {
  std::vector<checkpoint::LogicalTensor> needed;
  for (const Holding& holding : holdings)
    for (const nn::LogicalTensor& part : holding.parameter->parts())
      needed.push_back({holding.prefix + part.name, part.shape, dtype_of(holding.tensor)});
  reader.require(needed);
}

void read_into(const checkpoint::CheckpointReader& reader, const std::vector<Holding>& holdings) {
  const std::vector<Holding> host = on_host(holdings);
  std::vector<checkpoint::Target> targets;
  for_each_fragment(host, [&](const Holding& holding, const nn::Fragment& fragment, std::byte* data) {
    targets.push_back({holding.prefix + fragment.logical->name,
                       fragment.logical->shape,
                       {fragment.offset, fragment.size},
                       dtype_of(holding.tensor),
                       data});
  });
  reader.read(targets);
  for (size_t i = 0; i < holdings.size(); ++i)
    if (!host[i].tensor.is_same(holdings[i].tensor)) holdings[i].tensor.copy_(host[i].tensor);
}

void refuse_not_finite(const std::vector<Holding>& holdings, const checkpoint::CheckpointReader& reader) {
  std::vector<std::string> faults;
  for (const Holding& holding : holdings) {
    for (const nn::Fragment& fragment : holding.parameter->fragments()) {
      const at::Tensor part = holding.tensor.view({-1}).narrow(0, fragment.local_offset, fragment.elements());
      if (!std::isfinite(ops::sum_of_squares(part)))
        faults.push_back(fmt::format("{}{} in {} holds values that are not finite; go on from an earlier checkpoint",
                                     holding.prefix, fragment.logical->name, reader.folder().string()));
    }
  }
  if (!faults.empty()) throw InputError(faults);
}

nlohmann::json schedule_state(const Session& session) {
  const auto& schedule = session.config.lr_schedule;
  return {{"name", config::name_of(schedule.name)}, {"lr", session.config.optimizer.lr},
          {"warmup_steps", schedule.warmup_steps},  {"horizon", schedule.steps},
          {"decay_steps", schedule.decay_steps},    {"min_ratio", schedule.min_ratio},
          {"updates", session.optimizer->updates()}};
}

// What adapts to the steps that were: the loss scale of fp16, and the norms that the spike guard compares with.
nlohmann::json guard_state(const Session& session) {
  const optim::LossScaler::State& scaler = session.loss_scaler->state();
  return {{"loss_scale", scaler.scale}, {"sound_steps", scaler.sound_steps}, {"norms", session.spike_guard->norms()}};
}

void restore_guards(Session& session, const nlohmann::json& state) {
  if (!state.contains("guards")) return;  // of a version that had none
  const nlohmann::json& guards = state.at("guards");
  session.loss_scaler->set_state({guards.at("loss_scale").get<double>(), guards.at("sound_steps").get<int64_t>()});
  session.spike_guard->set_norms(guards.at("norms").get<std::deque<double>>());
}

void refuse_changed_config(const Session& session, const checkpoint::CheckpointReader& reader,
                           const std::function<void(const std::string&)>& say) {
  const config::Config was = config::parse_saved_config(reader.state().at("config").get<std::string>());
  std::vector<std::string> faults;
  for (const config::Difference& difference : config::differences(was, session.config)) {
    if (difference.may_change)
      say(fmt::format("{} was {}, is {}", difference.key, difference.was, difference.is));
    else
      faults.push_back(fmt::format("{} was {} when the run was started, and is {} now; a resumed run keeps it{}",
                                   difference.key, difference.was, difference.is,
                                   difference.hint.empty() ? std::string() : "; " + difference.hint));
  }
  const auto& hash = reader.state().at("tokenizer").at("hash").get_ref<const std::string&>();
  if (hash != session.dataset->tokenizer_hash())
    faults.push_back(fmt::format("the run was trained with the tokenizer {}, but data.path = {} was prepared with {}",
                                 hash, session.dataset->folder().string(), session.dataset->tokenizer_hash()));
  if (faults.empty()) return;
  faults.back() += fmt::format(". To start anew, choose another run.dir than {}", session.config.run.dir.string());
  throw InputError(faults);
}

void resume(Session& session, const checkpoint::Entry& entry, const std::function<void(const std::string&)>& say) {
  const auto reader = checkpoint::CheckpointReader::open(entry.folder);
  refuse_changed_config(session, reader, say);
  const std::vector<Holding> holdings = everything_of(session);
  require_the_same_tensors(reader, holdings);
  read_into(reader, holdings);
  refuse_not_finite(holdings, reader);
  session.data_parallel->refresh_weights();
  session.optimizer->settle();
  session.progress.step = reader.step();
  session.progress.tokens = reader.state().at("tokens").get<int64_t>();
  session.optimizer->set_updates(reader.state().at("schedule").at("updates").get<int64_t>());
  restore_guards(session, reader.state());
  start_loader(session, reader.state().at("loader").get<data::LoaderState>());
  say(fmt::format("resumed from {} (step {})", entry.folder.string(), entry.step));
  const int64_t threads = reader.layout().value("threads", int64_t{at::get_num_threads()});
  if (threads != at::get_num_threads())
    say(fmt::format("workers had {} threads, and have {} now: products may differ in the last bit from what they were",
                    threads, at::get_num_threads()));
  if (session.config.parallel.quantize_error_feedback)
    say("what rounding of gradients had lost is not in checkpoints: the next step is without it");
}

// What weights are shaped by. The rest of a model (rope_theta, rope_scaling, max_seq_len, norm_eps) may be given anew,
// as when a context is extended.
constexpr const char* kShapeKeys[] = {"architecture", "layers", "hidden", "heads",    "kv_heads", "head_dim",
                                      "ffn",          "vocab",  "tied",   "qkv_bias", "qk_norm",  "options"};

// A smaller model would be filled from a part of a larger one without a word, so the shapes are compared, not only the
// tensors.
void refuse_other_model(const Session& session, const checkpoint::CheckpointReader& reader) {
  std::vector<std::string> faults;
  const std::string folder = reader.folder().string();
  const nlohmann::json theirs = to_json(shape_from_json(reader.state().at("model")));
  const nlohmann::json ours = to_json(session.config.model);
  std::vector<std::string> keys(std::begin(kShapeKeys), std::end(kShapeKeys));
  if (session.config.model.is_gpt()) keys.emplace_back("max_seq_len");  // rows of the learned positions
  for (const std::string& key : keys)
    if (theirs.at(key) != ours.at(key))
      faults.push_back(
          fmt::format("checkpoint.load = {} has model.{} = {}, and model.{} is {} here; its weights need {}", folder,
                      key, theirs.at(key).dump(), key, ours.at(key).dump(), theirs.at(key).dump()));
  // Master weights are fp32 for bf16 and fp32, and fp64 for fp64.
  const config::Config was = config::parse_saved_config(reader.state().at("config").get<std::string>());
  const auto is_double = [](const config::Config& c) { return c.train.precision == config::Precision::fp64; };
  if (is_double(was) != is_double(session.config))
    faults.push_back(
        fmt::format("checkpoint.load = {} was trained with train.precision = \"{}\", and it is \"{}\" here; "
                    "weights in fp64 and others do not mix",
                    folder, config::name_of(was.train.precision), config::name_of(session.config.train.precision)));
  const auto& hash = reader.state().at("tokenizer").at("hash").get_ref<const std::string&>();
  if (hash != session.dataset->tokenizer_hash())
    faults.push_back(
        fmt::format("checkpoint.load = {} was trained with the tokenizer {}, but data.path = {} was prepared with {}",
                    folder, hash, session.dataset->folder().string(), session.dataset->tokenizer_hash()));
  if (!faults.empty()) throw InputError(faults);
}

void start_from(Session& session, const std::function<void(const std::string&)>& say) {
  const auto reader = [&] {
    try {
      return checkpoint::CheckpointReader::open(checkpoint::resolve_checkpoint(session.config.checkpoint.load).folder);
    } catch (const Error& error) {
      throw_input("checkpoint.load = {}: {}", session.config.checkpoint.load.string(), error.what());
    }
  }();
  refuse_other_model(session, reader);
  load_weights(*session.model, reader);
  session.data_parallel->refresh_weights();
  say(fmt::format("weights of {} (step {}); optimizer, schedule and data start anew", reader.folder().string(),
                  reader.step()));
}

}  // namespace

checkpoint::SaveReport save_checkpoint(const Session& session, const checkpoint::Store& store, Pruning pruning) {
  const comm::Communicator& replicas = session.data_parallel->replicas();
  checkpoint::SaveRequest request;
  request.step = session.progress.step;
  const std::vector<Holding> holdings = on_host(everything_of(session));
  for_each_fragment(holdings, [&](const Holding& holding, const nn::Fragment& fragment, const std::byte* at) {
    request.fragments.push_back({holding.prefix + fragment.logical->name,
                                 fragment.logical->shape,
                                 {fragment.offset, fragment.size},
                                 dtype_of(holding.tensor),
                                 at,
                                 replicas.rank(),
                                 replicas.size()});
  });
  request.state["tokens"] = session.progress.tokens;
  request.state["schedule"] = schedule_state(session);
  request.state["guards"] = guard_state(session);
  request.state["loader"] = session.loader->state();
  request.state["config"] = config::to_toml(session.config);
  request.state["model"] = to_json(session.config.model);
  request.state["tokenizer"] = {{"hash", session.dataset->tokenizer_hash()},
                                {"vocab_size", session.dataset->vocab_size()}};
  request.state["versions"] = {{"trireme", TRIREME_VERSION}, {"torch", TORCH_VERSION}};
  request.layout["data"] = session.mesh->data().size();
  request.layout["shard"] = config::name_of(session.config.parallel.shard);
  request.layout["shard_size"] = session.config.parallel.shard_size;
  request.layout["threads"] = at::get_num_threads();
  CommunicatorCoordination coordination(session.mesh->world());
  const checkpoint::SaveReport report = checkpoint::save(store, request, coordination);
  session.optimizer->settle();
  if (session.first_rank() && pruning == Pruning::as_configured) {
    // The new checkpoint is safe; an old one that does not go away (a reader on a network file system) ends no run.
    try {
      store.prune(session.config.checkpoint.keep, request.step);
    } catch (const Error& error) {
      log::warning("an old checkpoint stays: {}", error.what());
    }
  }
  return report;
}

void resume_or_start(Session& session, const checkpoint::Store& store,
                     const std::function<void(const std::string&)>& say) {
  CommunicatorCoordination coordination(session.mesh->world());
  if (session.config.checkpoint.resume) {
    std::vector<std::string> damaged;  // known to rank 0
    const auto report = [&](const std::string& text) {
      damaged.push_back(text);
      say(text);
    };
    if (const auto entry = store.find_newest_loadable(coordination, report)) return resume(session, *entry, say);
    // None is left: to start from nothing would take back the metrics of every step that they stand for.
    const std::string faults = coordination.all_gather_strings(fmt::format("{}", fmt::join(damaged, "; ")))[0];
    if (!faults.empty())
      throw_input("{}; no other checkpoint is left. Move {} away to start anew, or choose another run.dir", faults,
                  store.folder().string());
  } else if (store.newest()) {
    throw_input(
        "run.dir = {} holds checkpoints and checkpoint.resume is false; choose another run.dir, or let it resume",
        session.config.run.dir.string());
  }
  if (session.config.checkpoint.load.empty())
    session.data_parallel->initialize(static_cast<uint64_t>(session.config.run.seed));
  else
    start_from(session, say);
  if (session.ema) session.ema->start();
  session.optimizer->settle();
  start_loader(session, {});
}

const char* prefix_of(Weights weights) { return weights == Weights::average ? "ema." : "model."; }

void require_average(const checkpoint::CheckpointReader& reader) {
  const auto is_average = [](const auto& tensor) { return tensor.name.starts_with(prefix_of(Weights::average)); };
  if (std::ranges::none_of(reader.tensors(), is_average))
    throw_input("{} has no moving average of the weights: it was trained without train.ema_decay",
                reader.folder().string());
}

void load_weights(models::Model& model, const checkpoint::CheckpointReader& reader, Weights weights) {
  const std::vector<Holding> holdings = weights_of(model, weights);
  if (weights == Weights::average) require_average(reader);
  read_into(reader, holdings);
  refuse_not_finite(holdings, reader);
  const at::NoGradGuard no_grad;
  for (const nn::Parameter* parameter : model.parameters())
    if (parameter->copy().defined()) at::Tensor(parameter->copy()).copy_(parameter->master());
}

}  // namespace trireme::train
