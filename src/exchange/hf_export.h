// A checkpoint as a folder that transformers loads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/reader.h"
#include "data/tokenizer.h"
#include "describe/model_shape.h"

namespace trireme::exchange {

struct HfExportOptions {
  DType dtype = DType::bf16;                           ///< f32, bf16 or f16
  int64_t most_shard_bytes = int64_t{5} * 1000000000;  ///< of the values in one file, unless one tensor has more
  std::string prefix = "model.";  ///< of the logical tensors that are taken: "ema." for the average
};

struct HfExportReport {
  std::string architecture;
  int64_t tensors = 0, files = 0, bytes = 0;
  std::string note;  ///< what a user of the folder has to know; mostly empty
};

/// Writes safetensors files with their index, config.json, generation_config.json, tokenizer.json and
/// tokenizer_config.json. `out` must not exist, or be an empty folder; config.json appears in it last, when all is
/// there. Memory is bounded by twice the largest tensor. Throws InputError for a shape that transformers has not, for a
/// checkpoint that lacks a tensor, and for weights that are not finite in the type asked for.
HfExportReport export_to_hf(const checkpoint::CheckpointReader& reader, const describe::ModelShape& shape,
                            const data::Tokenizer& tokenizer, const std::filesystem::path& out,
                            const HfExportOptions& options);

}  // namespace trireme::exchange
