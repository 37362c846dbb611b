// Sampling from a model, token by token, with a key/value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/model.h"

namespace trireme::models {

struct SamplingOptions {
  int64_t max_tokens = 200;
  double temperature = 0.8;  ///< 0: always the most likely token
  int64_t top_k = 0;         ///< only the k most likely tokens; 0: all
  double top_p = 1.0;        ///< only the smallest set of most likely tokens whose probability reaches this
  uint64_t seed = 0;
  int32_t end_of_text = -1;  ///< ends the sample; not part of it
  int64_t vocab = 0;         ///< ids of the tokenizer; rows of a padded vocabulary beyond it are not drawn. 0: all
};

/// Throws InputError for a prompt of `tokens` tokens that leaves no room for one more.
void check_prompt(const Model& model, int64_t tokens);

/// Continues `prompt` (at least one token) and calls `on_token` for each new one; a false result ends the sample. Ends
/// at end_of_text, max_tokens, or the model's longest sequence. Token n is drawn from (seed, n): the same seed gives
/// the same sample. Returns the new tokens.
std::vector<int32_t> generate(Model& model, std::span<const int32_t> prompt, const SamplingOptions& options,
                              const std::function<bool(int32_t)>& on_token = {});

/// Index drawn from the distribution that temperature, top_k and top_p leave of `logits`; `uniform` in (0, 1).
int64_t sample(std::span<const float> logits, const SamplingOptions& options, double uniform);

}  // namespace trireme::models
