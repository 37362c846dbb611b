// A model out of a checkpoint, for generating and evaluating: no optimizer, no data, one process.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "config/named_path.h"
#include "data/tokenizer.h"
#include "models/model.h"
#include "train/checkpointing.h"

namespace trireme::train {

/// What a checkpoint holds, before a model is made of it.
struct CheckpointParts {
  checkpoint::CheckpointReader reader;
  describe::ModelShape shape;
  config::Config config;  ///< of the run
  data::Tokenizer tokenizer;
};

/// `path`: a step folder, or a run folder (its newest complete checkpoint). The tokenizer is the copy in the run
/// folder; InputError when it is not the one that the model was trained with.
CheckpointParts open_checkpoint(const std::filesystem::path& path);

struct LoadedModel {
  std::unique_ptr<models::Model> model;
  data::Tokenizer tokenizer;
  std::filesystem::path checkpoint;  ///< the step folder
  int64_t step = 0;
  int64_t seq_len = 0;  ///< that it was trained with
  int64_t micro_batch_size = 1;
  bool document_mask = false;               ///< that it was trained with
  std::vector<config::NamedPath> held_out;  ///< sets that it was evaluated on in training; they may be gone
  std::vector<config::NamedPath> choices;   ///< likewise, files of questions
};

/// `path` as open_checkpoint() has it.
LoadedModel load_model(const std::filesystem::path& path, Weights weights = Weights::trained);

/// Where a run keeps the copy of its tokenizer.
std::filesystem::path tokenizer_folder(const std::filesystem::path& run_folder);

}  // namespace trireme::train
