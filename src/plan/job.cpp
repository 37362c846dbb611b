#include "plan/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "describe/divisors.h"

namespace trireme::plan {
namespace {

constexpr std::array<std::string_view, 4> kPrecisions = {"bf16", "fp16", "fp8", "fp32"};
constexpr std::array<std::string_view, 4> kShards = {"none", "optimizer", "gradients", "parameters"};

template <size_t N>
size_t index_of(const std::array<std::string_view, N>& names, std::string_view name, std::string_view what) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    throw_input("{} \"{}\" is not known; there are {}", what, name, fmt::join(names, ", "));
  }
  return static_cast<size_t>(found - names.begin());
}

void tensor_faults(const Job& job, const Layout& layout, std::vector<std::string>& faults) {
  const describe::ModelShape& d = job.shape.decoder;
  const int64_t t = layout.tensor;
  const auto divides = [&](std::string_view key, int64_t value) {
    if (value % t != 0)
      faults.push_back(
          fmt::format("tensor = {} does not divide {} = {}; {}", t, key, value, describe::what_divides(value, t)));
  };
  divides("model.heads", d.heads);
  if (d.kv_heads % t != 0 && t % d.kv_heads != 0)
    faults.push_back(fmt::format("tensor = {} and model.kv_heads = {}: one has to divide the other; {}", t, d.kv_heads,
                                 describe::what_divides(d.kv_heads, t)));
  divides("model.ffn", d.ffn);
  if (job.shape.experts.shared_ffn > 0) divides("experts.shared_ffn", job.shape.experts.shared_ffn);
  if (layout.sequence_parallel && t > 1 && job.seq_len / layout.context % t != 0)
    faults.push_back(
        fmt::format("tensor = {} with sequence parallelism does not divide the {} tokens of a sequence on "
                    "a context rank; {}",
                    t, job.seq_len / layout.context, describe::what_divides(job.seq_len / layout.context, t)));
}

void expert_faults(const Job& job, const Layout& layout, std::vector<std::string>& faults) {
  const int64_t ranks = layout.tensor * layout.context * layout.data;
  if (!job.shape.has_experts()) {
    if (layout.expert > 1)
      faults.push_back(fmt::format("expert = {}, and {} has no experts; 1 works", layout.expert, job.shape.name));
    return;
  }
  const int64_t experts = job.shape.experts.experts;
  if (experts % layout.expert != 0)
    faults.push_back(fmt::format("expert = {} does not divide the {} experts; {}", layout.expert, experts,
                                 describe::what_divides(experts, layout.expert)));
  if (ranks % layout.expert != 0)
    faults.push_back(fmt::format("expert = {} does not divide tensor x context x data = {} x {} x {} = {}; {}",
                                 layout.expert, layout.tensor, layout.context, layout.data, ranks,
                                 describe::what_divides(ranks, layout.expert)));
  if (layout.tensor > 1 && !layout.sequence_parallel)
    faults.push_back("experts with tensor > 1 need sequence parallelism, or every tensor rank would send every token");
}

void replica_faults(const Job& job, const Layout& layout, std::vector<std::string>& faults) {
  if (layout.replicas == 1) return;
  if (layout.shard == Shard::none)
    faults.push_back(
        fmt::format("{} replicas of what is divided, and shard = none divides nothing; 1 works", layout.replicas));
  if (layout.data % layout.replicas != 0)
    faults.push_back(fmt::format("{} replicas of what is divided do not divide data = {}; {}", layout.replicas,
                                 layout.data, describe::what_divides(layout.data, layout.replicas)));
  if (job.shape.has_experts())
    faults.push_back(fmt::format("{} replicas of what is divided with experts are not planned; 1 is", layout.replicas));
}

void update_faults(const Job& job, const Layout& layout, std::vector<std::string>& faults) {
  if (!job.update_in_backward) return;
  const int64_t step = layout.data * layout.micro_batch;
  if (job.global_batch % step == 0 && job.global_batch != step)
    faults.push_back(
        fmt::format("updates in backward need one micro-batch a step, and there are {} of {} sequences on each of {} "
                    "data ranks; micro-batch {} works",
                    job.global_batch / step, layout.micro_batch, layout.data, job.global_batch / layout.data));
  if (layout.pipeline > 1)
    faults.push_back(fmt::format("updates in backward with pipeline = {} are not planned; 1 is", layout.pipeline));
}

void pipeline_faults(const Job& job, const Layout& layout, std::vector<std::string>& faults) {
  const int64_t layers = job.shape.decoder.layers;
  const int64_t most = layout.virtual_stages > 1 ? layers + 2 : layers;
  if (layout.stages() > most)
    faults.push_back(fmt::format("pipeline x virtual stages = {} x {} = {} is more than model.layers = {}{}",
                                 layout.pipeline, layout.virtual_stages, layout.stages(), layers,
                                 most > layers ? " with one stage each for embedding and head" : ""));
  const bool interleaved = layout.schedule == PipelineSchedule::interleaved;
  if (interleaved != (layout.virtual_stages > 1) || (interleaved && layout.pipeline == 1))
    faults.push_back(
        fmt::format("schedule {} with {} virtual stages on {} pipeline ranks: interleaved needs 2 or more "
                    "of both, the others have 1 virtual stage",
                    name_of(layout.schedule), layout.virtual_stages, layout.pipeline));
  if (layout.shard == Shard::parameters && layout.pipeline > 1 && job.shape.has_experts())
    faults.push_back("shard = parameters with pipeline > 1 and experts is not planned; optimizer works");
}

}  // namespace

std::string_view name_of(Precision precision) { return kPrecisions[static_cast<size_t>(precision)]; }
std::string_view name_of(Shard shard) { return kShards[static_cast<size_t>(shard)]; }
Precision precision_from(std::string_view name) {
  return static_cast<Precision>(index_of(kPrecisions, name, "precision"));
}
Shard shard_from(std::string_view name) { return static_cast<Shard>(index_of(kShards, name, "shard")); }

std::string to_text(const Layout& layout) {
  std::string text;
  const auto axis = [&](std::string_view name, int64_t size) {
    if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, size);
  };
  axis("tensor", layout.tensor);
  axis("context", layout.context);
  axis("pipeline", layout.pipeline);
  axis("data", layout.data);
  if (text.empty()) text = "one accelerator";
  if (layout.expert > 1) text += fmt::format(" (expert {})", layout.expert);
  text += fmt::format(", micro-batch {}", layout.micro_batch);
  if (layout.pipeline > 1) text += fmt::format(", {}", name_of(layout.schedule));
  if (layout.virtual_stages > 1) text += fmt::format(" {}", layout.virtual_stages);
  text += fmt::format(", recompute {}, shard {}", config::name_of(layout.recompute), name_of(layout.shard));
  if (layout.replicas > 1)
    text += fmt::format(" among {}{}", shard_ranks(layout), layout.replicas_innermost ? ", copies innermost" : "");
  if (layout.tensor > 1 && !layout.sequence_parallel) text += ", no sequence parallelism";
  return text;
}

std::vector<std::string> job_faults(const Job& job) {
  std::vector<std::string> faults = describe::work_shape_faults(job.shape);
  const describe::ModelShape& d = job.shape.decoder;
  const Accelerator& a = job.accelerator;
  if (d.is_gpt() && job.seq_len > d.max_seq_len)
    faults.push_back(fmt::format("sequences of {} tokens are longer than the {} learned positions of {}", job.seq_len,
                                 d.max_seq_len, job.shape.name));
  if (job.precision == Precision::fp8 && a.fp8_tflops <= 0)
    faults.push_back(fmt::format("{} has no fp8 products; bf16 works", a.name));
  if (static_cast<double>(job.gpus) > a.scale_up_domain && a.scale_out_gbs <= 0)
    faults.push_back(
        fmt::format("{} of {} need a network between domains of {}, and its bandwidth is not known; give "
                    "it as scale_out_gbs",
                    job.gpus, a.name, a.scale_up_domain));
  for (const auto& [name, value] : {std::pair("bf16_tflops", a.bf16_tflops),
                                    {"memory_gib", a.memory_gib},
                                    {"memory_gbs", a.memory_gbs},
                                    {"scale_up_gbs", a.scale_up_gbs}}) {
    if (value <= 0) faults.push_back(fmt::format("{} of {} is {}; it has to be above 0", name, a.name, value));
  }
  return faults;
}

std::vector<std::string> layout_faults(const Job& job, const Layout& layout) {
  std::vector<std::string> faults;
  for (const auto& [name, value] : {std::pair("tensor", layout.tensor),
                                    {"context", layout.context},
                                    {"pipeline", layout.pipeline},
                                    {"virtual stages", layout.virtual_stages},
                                    {"data", layout.data},
                                    {"expert", layout.expert},
                                    {"micro-batch", layout.micro_batch},
                                    {"replicas", layout.replicas}}) {
    if (value < 1) faults.push_back(fmt::format("{} = {}: at least 1 works", name, value));
  }
  if (!faults.empty()) return faults;
  const int64_t product = layout.tensor * layout.context * layout.pipeline * layout.data;
  if (product != job.gpus)
    faults.push_back(
        fmt::format("tensor x context x pipeline x data = {} x {} x {} x {} = {}, and there are {} "
                    "accelerators",
                    layout.tensor, layout.context, layout.pipeline, layout.data, product, job.gpus));
  const int64_t step = layout.data * layout.micro_batch;
  if (job.global_batch % step != 0) {
    faults.push_back(fmt::format("global batch {} is not a multiple of data x micro-batch = {} x {} = {}; {} is",
                                 job.global_batch, layout.data, layout.micro_batch, step,
                                 describe::either(describe::nearest_multiples(step, job.global_batch))));
  } else if (layout.schedule == PipelineSchedule::interleaved && job.global_batch / step % layout.pipeline != 0) {
    faults.push_back(
        fmt::format("interleaving takes micro-batches in groups of the {} pipeline ranks, and there are "
                    "{}; {} would do",
                    layout.pipeline, job.global_batch / step,
                    describe::either(describe::nearest_multiples(layout.pipeline, job.global_batch / step))));
  }
  if (layout.context > 1 && job.seq_len % (2 * layout.context) != 0)
    faults.push_back(
        fmt::format("context = {} needs sequences that are a multiple of {} tokens, so that each rank has "
                    "an early and a late piece; {} is not",
                    layout.context, 2 * layout.context, job.seq_len));
  update_faults(job, layout, faults);
  replica_faults(job, layout, faults);
  tensor_faults(job, layout, faults);
  pipeline_faults(job, layout, faults);
  expert_faults(job, layout, faults);
  return faults;
}

int64_t shard_ranks(const Layout& layout) { return layout.data * layout.context / layout.replicas; }

bool has_second_shard(int64_t neighbours, int64_t ranks) {
  return neighbours > 0 && neighbours < ranks && ranks % neighbours == 0;
}

int64_t micro_batches(const Job& job, const Layout& layout) {
  return job.global_batch / (layout.data * layout.micro_batch);
}

std::vector<int64_t> stage_layers(int64_t layers, int64_t stages) {
  std::vector<int64_t> result(static_cast<size_t>(stages), layers / stages);
  for (int64_t i = 0; i < layers % stages; ++i) ++result[static_cast<size_t>((i + 1) % stages)];
  return result;
}

}  // namespace trireme::plan
