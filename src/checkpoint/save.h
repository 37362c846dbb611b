// Saving: collective, durable, all or nothing.
//
// Each rank writes its share into one file of a temporary folder; only when every rank's bytes are on disk does rank 0
// write index.json and give the folder its final name. A crash at any instant leaves the checkpoints that were complete
// before. A failure on one rank (disk full, no permission) becomes the same error on all ranks, names rank, path and
// reason, and leaves nothing behind. Format: docs/checkpoints.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "checkpoint/coordination.h"
#include "checkpoint/fragment.h"
#include "checkpoint/store.h"

namespace trireme::checkpoint {

struct SaveRequest {
  int64_t step = 0;
  /// Of this rank. Over all ranks, each element of each logical tensor is held (replicas apart) exactly once.
  std::vector<Fragment> fragments;
  /// Anything else that a resumed run needs; rank 0's is written. Keys that others read: `tokens`, `schedule`, `loader`
  /// (these three are part of the digest, so nothing of path, time or layout may be in them), `config`, `model`,
  /// `tokenizer`, `versions`.
  nlohmann::json state = nlohmann::json::object();
  /// How the run was laid out (mesh, sharding), for people: loading does not read it. Rank 0's is written.
  nlohmann::json layout = nlohmann::json::object();
};

/// Called by tests at named points on each rank that passes them: `in_file` (half of the bytes written), `after_file`,
/// `after_fsync`, `before_index`, `before_rename`, `after_rename` (the last three on rank 0 only).
using FaultHook = std::function<void(std::string_view point, int rank)>;

struct SaveReport {
  std::filesystem::path folder;
  int64_t bytes = 0;       ///< of all files of tensors
  int64_t rank_bytes = 0;  ///< of this rank's file; 0 when it had nothing to write
  double seconds = 0;      ///< of this rank, from call to return
};

/// Collective. Throws the same error on every rank. An existing checkpoint of the same step is replaced atomically.
SaveReport save(const Store& store, const SaveRequest& request, Coordination& coordination, const FaultHook& hook = {});

}  // namespace trireme::checkpoint
