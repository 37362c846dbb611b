// The folder RUN/checkpoints: which checkpoints are there, which to resume from, which to drop.
//
//   RUN/checkpoints/step-00000100/            a complete checkpoint: it got this name after all its bytes were durable
//   RUN/checkpoints/step-00000100.tmp-TOKEN/  a save under way, or the leftover of a crash
//   RUN/checkpoints/.trash-step-...-TOKEN/    a removal under way, or the leftover of a crash
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/coordination.h"

namespace trireme::checkpoint {

class CheckpointReader;

/// A complete checkpoint.
struct Entry {
  int64_t step = 0;
  std::filesystem::path folder;
};

class Store {
 public:
  explicit Store(std::filesystem::path run_folder);

  /// RUN/checkpoints; it need not exist.
  const std::filesystem::path& folder() const { return folder_; }
  const std::filesystem::path& run_folder() const { return run_folder_; }
  /// The final folder of a step: step-00000100.
  std::filesystem::path step_folder(int64_t step) const;

  /// Complete checkpoints by ascending step. Empty when there is none.
  std::vector<Entry> list() const;
  std::optional<Entry> newest() const;

  /// Collective. The newest checkpoint whose every byte is intact: the ranks share the reading and agree. Each damaged
  /// one is told to `report` (on rank 0, what is wrong with it) and the one before is tried. Nothing when none is left.
  std::optional<Entry> find_newest_loadable(Coordination& coordination,
                                            const std::function<void(const std::string&)>& report) const;

  /// Drops all but the last `keep` checkpoints up to `newest_saved`; 0 keeps all. Those of later steps (a damaged one
  /// that the run was resumed before) are left alone, and `newest_saved` itself never goes. By one rank alone, after a
  /// save. A folder is renamed before it is emptied, so there is never half a checkpoint under a checkpoint's name.
  void prune(int64_t keep, int64_t newest_saved) const;

  /// Removes temporary folders that crashes left. By one rank alone, and only while the run's lock is held: a temporary
  /// folder of a live run would go too. save() calls it.
  void remove_leftovers() const;

 private:
  /// Every folder with a checkpoint's name, by ascending step.
  std::vector<Entry> step_folders() const;

  std::filesystem::path run_folder_;
  std::filesystem::path folder_;
};

/// The checkpoint that a user names: a step folder, or a run folder or its `checkpoints` (then the newest complete
/// one). Throws InputError that says what is there instead.
Entry resolve_checkpoint(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
