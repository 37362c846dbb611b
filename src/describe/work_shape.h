// Shapes that the planner reckons with: a decoder that the trainer may build (ModelShape), and on top of it what the
// trainer does not build yet: experts, latent attention, heads that predict several tokens.
//
// Nothing here changes what `trireme train` accepts: its options are made from ModelShape and its presets alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "describe/model_shape.h"

namespace trireme::describe {

/// A mixture of experts in place of the feed-forward layer (Shazeer et al., arXiv:1701.06538; Fedus et al.,
/// arXiv:2101.03961). An expert has the form of the decoder's own feed-forward layer.
struct ExpertShape {
  int64_t experts = 0;       ///< routed ones a layer; 0: none
  int64_t active = 0;        ///< routed experts that a token visits
  int64_t ffn = 0;           ///< width inside a routed expert
  int64_t shared_ffn = 0;    ///< summed widths of the experts that every token visits
  int64_t dense_layers = 0;  ///< first blocks, which keep the dense feed-forward layer of width ModelShape::ffn

  bool operator==(const ExpertShape&) const = default;
};

/// Multi-head latent attention: keys and values from one narrow vector a token (DeepSeek-V2, arXiv:2405.04434, section
/// 2.1). ModelShape::head_dim is then content_dim + rotary_dim.
struct LatentAttention {
  int64_t query_rank = 0;   ///< width of the compressed query; 0: queries come from the hidden state
  int64_t kv_rank = 0;      ///< width of the compressed keys and values; 0: plain attention
  int64_t content_dim = 0;  ///< features of a query and key head without position
  int64_t rotary_dim = 0;   ///< features with position; the key's are shared by all heads
  int64_t value_dim = 0;    ///< features of a value head

  bool operator==(const LatentAttention&) const = default;
};

struct WorkShape {
  std::string name;
  ModelShape decoder;
  ExpertShape experts;
  LatentAttention latent;
  int64_t mtp_layers = 0;  ///< blocks that predict further tokens (DeepSeek-V3, arXiv:2412.19437, section 2.2)

  bool has_experts() const { return experts.experts > 0; }
  bool is_latent() const { return latent.kv_rank > 0; }
  /// Gate and up projection side by side, against one projection in GPT-2.
  bool is_gated() const { return !decoder.is_gpt(); }
  int64_t expert_layers() const { return has_experts() ? decoder.layers - experts.dense_layers : 0; }
};

/// Parameters of a WorkShape by role; a layer's own are those of one block.
struct WorkParameters {
  int64_t embedding = 0;  ///< tables of tokens and positions
  int64_t head = 0;       ///< 0 when tied
  int64_t final_norm = 0;
  int64_t layer_attention = 0;  ///< projections of one block, with their biases
  int64_t layer_norm = 0;       ///< norms of one block
  int64_t dense_ffn = 0;        ///< feed-forward layer of a block without experts
  int64_t router = 0;           ///< of a block with experts
  int64_t shared_experts = 0;   ///< of a block with experts
  int64_t one_expert = 0;       ///< a single routed expert
  int64_t mtp = 0;              ///< all blocks of multi-token prediction, with their projections

  int64_t total = 0;
  int64_t active = 0;  ///< that one token meets: of the routed experts only those that it visits; without mtp
};
WorkParameters count_work_parameters(const WorkShape& shape);

/// What keeps the shape from being planned, each fault with both numbers and what works.
std::vector<std::string> work_shape_faults(const WorkShape& shape);

/// A model that the planner knows by name.
struct WorkPreset {
  WorkShape shape;
  double published_total = 0;   ///< parameters as published, for tests
  double published_active = 0;  ///< 0: dense
  std::string_view source;
};

/// What the planner alone knows; presets() of model_shape.h come on top.
std::span<const WorkPreset> work_presets();
/// All names that work_preset takes: the trainer's presets, the planner's, and aliases such as llama3-405b.
std::vector<std::string> work_preset_names();
/// By name or alias, upper or lower case. Throws InputError with the nearest name.
WorkShape work_preset(std::string_view name);

}  // namespace trireme::describe
