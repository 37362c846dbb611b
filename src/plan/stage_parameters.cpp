#include "plan/stage_parameters.h"

#include <algorithm>

namespace trireme::plan {
namespace {

using describe::WorkParameters;

/// On one tensor rank, without routed experts.
double block_elements(const Job& job, const WorkParameters& counts, const Layout& layout, bool experts) {
  const auto t = static_cast<double>(layout.tensor);
  const describe::LatentAttention& latent = job.shape.latent;
  const int64_t hidden = job.shape.decoder.hidden;
  double whole = static_cast<double>(counts.layer_norm);
  if (job.shape.is_latent())
    whole += static_cast<double>(hidden * (latent.query_rank + latent.kv_rank + latent.rotary_dim));
  double split = static_cast<double>(counts.layer_attention) + static_cast<double>(counts.layer_norm) - whole;
  if (experts) {
    whole += static_cast<double>(counts.router);
    split += static_cast<double>(counts.shared_experts);
  } else {
    split += static_cast<double>(counts.dense_ffn);
  }
  return whole + split / t;
}

}  // namespace

double StageParameters::optimizer_elements(const Job& job, const Layout& layout) const {
  if (layout.shard == Shard::none) return all();
  const double copies = static_cast<double>(layout.tensor * layout.context * layout.data / layout.expert);
  return dense / static_cast<double>(shard_ranks(layout)) + (job.shape.has_experts() ? experts / copies : 0);
}

StageParameters& StageParameters::operator+=(const StageParameters& other) {
  dense += other.dense;
  experts += other.experts;
  ends += other.ends;
  largest_block = std::max(largest_block, other.largest_block);
  largest_unit = std::max(largest_unit, other.largest_unit);
  return *this;
}

int64_t dense_layers(const Job& job, int64_t first, int64_t layers) {
  if (!job.shape.has_experts()) return layers;
  return std::clamp<int64_t>(job.shape.experts.dense_layers - first, 0, layers);
}

StageParameters stage_parameters(const Job& job, const Layout& layout, int64_t stage) {
  const WorkParameters counts = describe::count_work_parameters(job.shape);
  const std::vector<int64_t> layers = stage_layers(job.shape.decoder.layers, layout.stages());
  int64_t first = 0;
  for (int64_t s = 0; s < stage; ++s) first += layers[static_cast<size_t>(s)];
  const int64_t here = layers[static_cast<size_t>(stage)];
  const int64_t dense = dense_layers(job, first, here);
  const auto t = static_cast<double>(layout.tensor);
  const double expert_block =
      static_cast<double>(job.shape.experts.experts * counts.one_expert) / static_cast<double>(layout.expert);
  const double with_experts = block_elements(job, counts, layout, true);
  const double without = block_elements(job, counts, layout, false);

  StageParameters result;
  result.dense = static_cast<double>(dense) * without + static_cast<double>(here - dense) * with_experts;
  result.experts = static_cast<double>(here - dense) * expert_block;
  result.largest_block = std::max(dense > 0 ? without : 0, here > dense ? with_experts : 0);
  result.largest_unit = result.largest_block;
  const auto table = [&](double elements) {
    result.ends += elements / t;
    result.largest_unit = std::max(result.largest_unit, elements / t);
  };
  const bool last = stage + 1 == layout.stages();
  if (stage == 0) table(static_cast<double>(counts.embedding));
  if (last) {
    // A tied head on another stage than the embedding is a copy of it.
    const bool copy = job.shape.decoder.tied && layout.pipeline > 1;
    table(static_cast<double>(copy ? job.shape.decoder.vocab * job.shape.decoder.hidden : counts.head));
    result.ends += static_cast<double>(counts.final_norm);
    const auto mtp = static_cast<double>(job.shape.mtp_layers);
    result.experts += job.shape.has_experts() ? mtp * expert_block : 0;
    const double hidden = static_cast<double>(job.shape.decoder.hidden);
    result.ends += mtp * ((job.shape.has_experts() ? with_experts : without) + 2 * hidden * hidden / t);
  }
  result.dense += result.ends;
  return result;
}

}  // namespace trireme::plan
