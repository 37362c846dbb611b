// config.json and generation_config.json of transformers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "describe/model_shape.h"

namespace trireme::exchange {

/// Name of transformers' architecture for a shape, e.g. "Qwen3ForCausalLM". Throws InputError for a combination of
/// options that none of them has.
std::string hf_architecture(const describe::ModelShape& shape);

/// `dtype`: "float32", "bfloat16" or "float16". A text begins after an end-of-text token, so that is both bos and eos.
std::string hf_config(const describe::ModelShape& shape, std::string_view dtype, int64_t end_of_text);
std::string hf_generation_config(int64_t end_of_text);

}  // namespace trireme::exchange
