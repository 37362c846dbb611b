#include "plan/flops.h"

#include "base/error.h"
#include "plan/operations.h"

namespace trireme::plan {
namespace {

using describe::WorkShape;

/// Parameters that a token is multiplied with: all that it meets but the tables, which are looked up; a tied table
/// multiplies as the head.
double multiplying(const WorkShape& shape) {
  const describe::WorkParameters counts = describe::count_work_parameters(shape);
  const describe::ModelShape& d = shape.decoder;
  const int64_t head = d.vocab * d.hidden;
  return static_cast<double>(counts.active - counts.embedding + (d.tied ? head : 0));
}

double attention(const WorkShape& shape, double seen) {
  const describe::ModelShape& d = shape.decoder;
  const int64_t width = shape.is_latent() ? d.heads * (d.head_dim + shape.latent.value_dim) : 2 * d.heads * d.head_dim;
  return 6 * static_cast<double>(d.layers * width) * seen;
}

void require_gpt(const WorkShape& shape) {
  const describe::ModelShape& d = shape.decoder;
  if (shape.has_experts() || !d.is_gpt() || d.ffn != 4 * d.hidden || d.heads * d.head_dim != d.hidden)
    throw_input("Narayanan's formula is for a GPT with ffn = 4 x hidden and no experts, and {} is not one; take palm",
                shape.name);
}

}  // namespace

std::string_view name_of(FlopConvention convention) {
  switch (convention) {
    case FlopConvention::six_n:
      return "6ND";
    case FlopConvention::palm:
      return "PaLM";
    case FlopConvention::palm_causal:
      return "PaLM, causal";
    case FlopConvention::narayanan:
      return "Narayanan";
  }
  return "";
}

double flops_per_token(const WorkShape& shape, int64_t seq_len, FlopConvention convention) {
  const describe::ModelShape& d = shape.decoder;
  const auto length = static_cast<double>(seq_len), window = static_cast<double>(d.sliding_window);
  const double reach = window > 0 && window < length ? window : length;
  switch (convention) {
    case FlopConvention::six_n:
      return 6 * static_cast<double>(describe::count_work_parameters(shape).active);
    case FlopConvention::palm:
      return 6 * multiplying(shape) + attention(shape, reach);
    case FlopConvention::palm_causal:
      return 6 * multiplying(shape) + attention(shape, describe::causal_tokens_seen(seq_len, d.sliding_window));
    case FlopConvention::narayanan:
      break;
  }
  require_gpt(shape);
  const auto h = static_cast<double>(d.hidden), l = static_cast<double>(d.layers), v = static_cast<double>(d.vocab);
  return 72 * l * h * h * (1 + length / (6 * h) + v / (12 * l * h));
}

double narayanan_hardware_flops_per_token(const WorkShape& shape, int64_t seq_len) {
  require_gpt(shape);
  const describe::ModelShape& d = shape.decoder;
  const auto h = static_cast<double>(d.hidden), l = static_cast<double>(d.layers), v = static_cast<double>(d.vocab);
  return 96 * l * h * h * (1 + static_cast<double>(seq_len) / (6 * h) + v / (16 * l * h));
}

double executed_flops(const Job& job, const Layout& layout) {
  const auto block = [&](bool experts) {
    const std::vector<Op> ops = block_operations(job, layout, experts);
    double flops = total(repeated(job, layout, ops)).flops;
    // Fused attention makes the scores again by itself.
    for (const Op& op : ops) flops += op.flops * (op.kind == OpKind::flash ? 3.5 : 3);
    return flops;
  };
  const int64_t with_experts = job.shape.expert_layers() + (job.shape.has_experts() ? job.shape.mtp_layers : 0);
  const int64_t dense = job.shape.decoder.layers - job.shape.expert_layers();
  const double head = 3 * total(head_operations(job, layout)).flops * static_cast<double>(1 + job.shape.mtp_layers);
  const double one_rank = static_cast<double>(dense) * block(false) +
                          (with_experts > 0 ? static_cast<double>(with_experts) * block(true) : 0) + head;
  // A micro-batch meets every layer once: tensor and context ranks share it, pipeline ranks divide the layers.
  return one_rank * static_cast<double>(layout.tensor * layout.context * layout.data * micro_batches(job, layout));
}

}  // namespace trireme::plan
