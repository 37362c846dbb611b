#include "train/inference.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/store.h"
#include "config/config.h"
#include "ops/dispatch.h"
#include "train/checkpointing.h"
#include "train/model_json.h"
#include "train/session.h"

namespace trireme::train {

std::filesystem::path tokenizer_folder(const std::filesystem::path& run_folder) { return run_folder / "tokenizer"; }

CheckpointParts open_checkpoint(const std::filesystem::path& path) {
  const checkpoint::Entry entry = checkpoint::resolve_checkpoint(path);
  checkpoint::CheckpointReader reader = checkpoint::CheckpointReader::open(entry.folder);
  config::Config config = config::parse_saved_config(reader.state().at("config").get<std::string>());
  // RUN/checkpoints/step-00000100
  const std::filesystem::path run =
      std::filesystem::absolute(entry.folder).lexically_normal().parent_path().parent_path();
  data::Tokenizer tokenizer = data::Tokenizer::load(tokenizer_folder(run));
  const auto& hash = reader.state().at("tokenizer").at("hash").get_ref<const std::string&>();
  if (hash != tokenizer.hash())
    throw_input("{} is not the tokenizer that {} was trained with: its hash is {}, expected {}",
                tokenizer_folder(run).string(), entry.folder.string(), tokenizer.hash(), hash);
  describe::ModelShape shape = shape_from_json(reader.state().at("model"));
  return {std::move(reader), std::move(shape), std::move(config), std::move(tokenizer)};
}

LoadedModel load_model(const std::filesystem::path& path, Weights weights) {
  const at::NoGradGuard no_grad;
  CheckpointParts parts = open_checkpoint(path);
  const config::TrainConfig& train = parts.config.train;
  LoadedModel loaded{models::make_model(parts.shape, activation_type(train.precision)),
                     std::move(parts.tokenizer),
                     parts.reader.folder(),
                     parts.reader.step(),
                     train.seq_len,
                     train.micro_batch_size,
                     train.document_mask,
                     held_out_sets(parts.config),
                     choice_files(parts.config)};
  for (nn::Parameter* parameter : loaded.model->parameters()) {
    const auto statistics = ops::compute_type(parameter->dtype());
    const at::Tensor master = at::empty(parameter->shape(), statistics);
    const at::Tensor value =
        parameter->dtype() == statistics ? master : at::empty(parameter->shape(), parameter->dtype());
    // No gradient will be asked for: an empty stand-in of the right shape, without memory of its own.
    parameter->bind(value, master, at::empty({1}, statistics).expand(parameter->shape()));
  }
  load_weights(*loaded.model, parts.reader, weights);
  loaded.model->prepare(at::kCPU);
  return loaded;
}

}  // namespace trireme::train
