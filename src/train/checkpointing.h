// From a session to a checkpoint and back.
//
// Tensors: `model.NAME` (the master weight), `optimizer.exp_avg.NAME`, `optimizer.exp_avg_sq.NAME`, and with
// train.ema_decay `ema.NAME`, for each logical tensor NAME. State: tokens, schedule, guards (loss scale, norms of the
// spike guard), loader, config, model, tokenizer, versions.
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

enum class Weights {
  trained,
  average,  ///< their moving average (train.ema_decay)
};

/// What the names of their tensors begin with.
const char* prefix_of(Weights weights);

/// Throws InputError when a checkpoint has no moving average.
void require_average(const checkpoint::CheckpointReader& reader);

/// Fills what this rank holds of the weights of a model (not the optimizer) from a checkpoint; weights that the ranks
/// divide are there once their owner has gathered them. InputError when it has no average and that is wanted.
void load_weights(models::Model& model, const checkpoint::CheckpointReader& reader, Weights weights = Weights::trained);

}  // namespace trireme::train
