#include "train/inference.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/store.h"
#include "config/config.h"
#include "ops/dispatch.h"
#include "train/checkpointing.h"
#include "train/session.h"

namespace trireme::train {

std::filesystem::path tokenizer_folder(const std::filesystem::path& run_folder) { return run_folder / "tokenizer"; }

LoadedModel load_model(const std::filesystem::path& path) {
  const at::NoGradGuard no_grad;
  const checkpoint::Entry entry = checkpoint::resolve_checkpoint(path);
  const auto reader = checkpoint::CheckpointReader::open(entry.folder);
  const config::Config config =
      config::parse_config(reader.state().at("config").get<std::string>(), "the checkpoint's config", "/");
  // RUN/checkpoints/step-00000100
  const std::filesystem::path run =
      std::filesystem::absolute(entry.folder).lexically_normal().parent_path().parent_path();
  LoadedModel loaded{
      models::make_model(shape_from_json(reader.state().at("model")), activation_type(config.train.precision)),
      data::Tokenizer::load(tokenizer_folder(run)),
      entry.folder,
      entry.step,
      config.train.seq_len,
      config.train.micro_batch_size,
      held_out_sets(config),
      choice_files(config)};
  const auto& hash = reader.state().at("tokenizer").at("hash").get_ref<const std::string&>();
  if (hash != loaded.tokenizer.hash())
    throw_input("{} is not the tokenizer that {} was trained with: its hash is {}, expected {}",
                tokenizer_folder(run).string(), entry.folder.string(), loaded.tokenizer.hash(), hash);
  for (nn::Parameter* parameter : loaded.model->parameters()) {
    const auto statistics = ops::compute_type(parameter->dtype());
    const at::Tensor master = at::empty(parameter->shape(), statistics);
    const at::Tensor value =
        parameter->dtype() == statistics ? master : at::empty(parameter->shape(), parameter->dtype());
    // No gradient will be asked for: an empty stand-in of the right shape, without memory of its own.
    parameter->bind(value, master, at::empty({1}, statistics).expand(parameter->shape()));
  }
  load_weights(*loaded.model, reader);
  loaded.model->prepare(at::kCPU);
  return loaded;
}

}  // namespace trireme::train
