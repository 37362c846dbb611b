// From a session to a checkpoint and back.
//
// Tensors: `model.NAME` (the master weight), `optimizer.exp_avg.NAME`, `optimizer.exp_avg_sq.NAME` for each logical
// tensor NAME. State: tokens, schedule, loader, config, model, tokenizer, versions.
#pragma once

#include <functional>
#include <string>

#include "checkpoint/reader.h"
#include "checkpoint/save.h"
#include "checkpoint/store.h"
#include "train/session.h"

namespace trireme::train {

enum class Pruning {
  as_configured,  ///< older checkpoints beyond checkpoint.keep are dropped
  none,
};

/// Collective: a checkpoint of the session as it stands.
checkpoint::SaveReport save_checkpoint(const Session& session, const checkpoint::Store& store,
                                       Pruning pruning = Pruning::as_configured);

/// Collective: goes on from the newest intact checkpoint of the run, or starts from checkpoint.load, or from nothing;
/// starts the loader. `say` hears what happened, on rank 0. A run of which every checkpoint is damaged, one whose
/// config differs where it must not, a checkpoint of another tokenizer or model, and weights that are not finite are
/// refused.
void resume_or_start(Session& session, const checkpoint::Store& store,
                     const std::function<void(const std::string&)>& say);

/// Fills the weights of a model (not the optimizer) from a checkpoint.
void load_weights(models::Model& model, const checkpoint::CheckpointReader& reader);

/// The model's shape in a checkpoint's state, and the reverse.
nlohmann::json to_json(const describe::ModelShape& shape);
describe::ModelShape shape_from_json(const nlohmann::json& json);

}  // namespace trireme::train
