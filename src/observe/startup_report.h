// The report at the start of a run: what will be trained, on what, with which arithmetic, and where things will lie.
//
// A plain struct in, text out. Whoever fills it in (the trainer) knows the parts; this file knows only how to say it.
// What is empty, or 0 where 0 makes no sense, is left out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/machine.h"
#include "config/config.h"
#include "config/named_path.h"
#include "observe/memory_estimate.h"

namespace trireme::observe {

/// A held-out set.
struct HeldOutReport {
  config::NamedPath set;  ///< without a name: data.eval_path
  int64_t documents = 0, tokens = 0;
  int64_t bytes = 0;  ///< of text
};

struct StartupReport {
  std::string version;  ///< of Trireme
  std::string torch;    ///< of LibTorch

  // Machine.
  std::string host;
  int64_t cores = 0;            ///< of the machine, or the container's quota
  int64_t threads = 0;          ///< a worker's team
  std::string instruction_set;  ///< of the kernels: base/cpu_level.h
  int64_t memory_bytes = 0;     ///< of the machine, or the container's limit where that is less
  int64_t workers = 1;
  std::string mesh;  ///< comm::RankGrid::table(): a line for each axis that is larger than 1; empty: left out
  /// That a worker has in memory beside tensors: what libraries keep, and mapped code and data, which workers share. 0:
  /// not known.
  int64_t libraries_bytes = 0, mapped_bytes = 0;
  double matmul_flops_per_second = 0;  ///< all workers together; 0: not measured
  int64_t matmul_size = 0;

  /// Resolved (config::resolve_world).
  config::Config config;
  int64_t accumulation = 1;

  // Data.
  int64_t train_documents = 0;
  int64_t train_tokens = 0;
  int64_t train_bytes = 0;  ///< of text
  std::vector<HeldOutReport> held_out;
  struct Choices {
    config::NamedPath suite;
    int64_t questions = 0;
  };
  std::vector<Choices> choices;

  int64_t first_step = 0;              ///< finished steps at the start; > 0: resumed
  std::filesystem::path resumed_from;  ///< a checkpoint; empty: fresh weights
};

/// Several lines, each ending with a newline.
std::string to_text(const StartupReport& report);

/// "global batch 32 sequences = 8 micro x 2 data ranks x 2 accumulation = 16,384 tokens a step"
std::string batch_arithmetic(int64_t micro_batch_size, int64_t data_ranks, int64_t accumulation, int64_t seq_len);

}  // namespace trireme::observe
