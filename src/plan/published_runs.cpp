#include "plan/published_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "plan/flops.h"
#include "plan/step_time.h"

namespace trireme::plan {
namespace {

using Row = std::map<std::string, std::string>;

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

const std::string& cell(const Row& row, const std::string& column) {
  static const std::string nothing;
  const auto found = row.find(column);
  return found == row.end() || found->second == "-" ? nothing : found->second;
}

int64_t count(const Row& row, const std::string& column, int64_t otherwise) {
  return static_cast<int64_t>(to_number(cell(row, column)).value_or(static_cast<double>(otherwise)));
}

bool holds(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Thrown inside this file, caught where the row is read.
struct Skip {
  std::string why;
};

describe::WorkShape read_shape(const Row& row) {
  const std::string name = lower(cell(row, "model"));
  std::map<std::string, int64_t> given;
  for (const std::string& part : split(cell(row, "shape"), ';')) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) continue;
    if (const auto value = to_number(part.substr(equals + 1)))
      given[part.substr(0, equals)] = static_cast<int64_t>(*value);
  }
  for (const char* key : {"L", "h", "a", "ffn"}) {
    if (!given.contains(key)) throw Skip{fmt::format("the shape does not say {}", key)};
  }
  const std::vector<std::string> known = describe::work_preset_names();
  if (given.contains("E") && std::ranges::find(known, name) != known.end()) return describe::work_preset(name);
  describe::WorkShape shape;
  shape.name = cell(row, "model");
  describe::ModelShape& d = shape.decoder;
  d.layers = given["L"];
  d.hidden = given["h"];
  d.heads = given["a"];
  d.kv_heads = given.contains("kv") ? given["kv"] : d.heads;
  d.head_dim = holds(name, "qwen3") ? 128 : d.hidden / d.heads;
  d.ffn = given["ffn"];
  d.vocab = given.contains("V") ? given["V"] : 50304;
  d.max_seq_len = std::max<int64_t>(count(row, "seq", 2048), 1);
  d.architecture = d.ffn == 4 * d.hidden && d.kv_heads == d.heads && !given.contains("E") ? "gpt" : "llama";
  d.tied = d.is_gpt();
  if (given.contains("E")) {
    shape.experts = {.experts = given["E"],
                     .active = given["topk"],
                     .ffn = given["moe_ffn"],
                     .shared_ffn = given["shared"] * given["moe_ffn"],
                     .dense_layers = 0};
  }
  return shape;
}

Precision read_precision(const std::string& text) {
  const std::string name = lower(text);
  if (holds(name, "fp4")) throw Skip{"fp4 products are not modelled"};
  if (holds(name, "fp8")) return Precision::fp8;
  if (holds(name, "bf16") || name.empty()) return Precision::bf16;
  if (holds(name, "fp16")) return Precision::fp16;
  throw Skip{fmt::format("precision {} is not modelled", text)};
}

Shard read_shard(const std::string& text) {
  const std::string name = lower(text);
  if (holds(name, "fsdp") || holds(name, "zero3")) return Shard::parameters;
  if (holds(name, "zero2")) return Shard::gradients;
  if (holds(name, "zero1") || holds(name, "distributed optimizer")) return Shard::optimizer;
  return Shard::none;
}

/// "800 Gb/s per node", of 8 accelerators.
std::optional<double> network_gbs(const std::string& conditions) {
  const size_t unit = conditions.find(" Gb/s per node");
  if (unit == std::string::npos) return {};
  size_t begin = unit;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(conditions[begin - 1]))) --begin;
  const auto value = to_number(conditions.substr(begin, unit - begin));
  return value ? std::optional(*value / 8 / 8) : std::nullopt;
}

void read_layout(const Row& row, PublishedRun& run) {
  Layout& layout = run.layout;
  layout.tensor = count(row, "TP", 1);
  layout.pipeline = count(row, "PP", 1);
  layout.virtual_stages = count(row, "VP", 1);
  layout.context = count(row, "CP", 1);
  layout.expert = count(row, "EP", 1);
  layout.data = run.job.gpus / std::max<int64_t>(layout.tensor * layout.pipeline * layout.context, 1);
  if (cell(row, "mbs").empty()) throw Skip{"the micro-batch is not stated"};
  layout.micro_batch = count(row, "mbs", 1);
  if (layout.virtual_stages > 1) layout.schedule = PipelineSchedule::interleaved;
  const std::string recompute = cell(row, "recompute"), conditions = cell(row, "conditions");
  layout.recompute = recompute == "full"            ? Recompute::full
                     : recompute.starts_with("sel") ? Recompute::selective
                                                    : Recompute::none;
  if (holds(recompute, "(op)")) run.job.selective = Selective::products;
  layout.shard = read_shard(cell(row, "dp_mode"));
  const bool megatron_2022 = run.job.precision == Precision::fp16;
  const bool without = holds(conditions, "no sequence parallel") || holds(conditions, "SP off");
  const bool with = holds(conditions, "sequence parallel") || holds(conditions, "SP on");
  layout.sequence_parallel = !without && (!megatron_2022 || with);
  if (megatron_2022) {
    run.job.shape.decoder.dropout = 0.1;
    run.job.flash = false;
    run.job.gradient_bytes = 2;
    run.job.overlap_gradients = false;
  }
}

void fill(const Row& row, PublishedRun& run) {
  run.step_s = to_number(cell(row, "step_s")).value_or(0);
  run.memory_gib = to_number(cell(row, "mem_gib")).value_or(0);
  if (cell(row, "shape").empty()) throw Skip{"the shape is not stated"};
  if (holds(cell(row, "conditions"), "LoRA Performance")) throw Skip{"low-rank adapters are not modelled"};
  if (cell(row, "kind") == "layer") throw Skip{"a part of a step"};
  Job& job = run.job;
  job.precision = read_precision(cell(row, "precision"));
  job.shape = read_shape(row);
  job.gpus = count(row, "n_gpu", 0);
  job.global_batch = count(row, "gbs_seq", 0);
  job.seq_len = count(row, "seq", 0);
  for (const auto& [name, value] :
       {std::pair("n_gpu", job.gpus), {"gbs_seq", job.global_batch}, {"seq", job.seq_len}}) {
    if (value < 1) throw Skip{fmt::format("{} is not stated", name)};
  }
  job.accelerator = accelerator(cell(row, "gpu"));
  if (const auto gbs = network_gbs(cell(row, "conditions"))) job.accelerator.scale_out_gbs = *gbs;
  job.shape.decoder.max_seq_len = std::max(job.shape.decoder.max_seq_len, job.seq_len);
  read_layout(row, run);
  if (run.step_s == 0) {
    const double rate = to_number(cell(row, "tok_s_gpu")).value_or(0);
    if (rate > 0) run.step_s = static_cast<double>(job.tokens_per_step()) / (rate * static_cast<double>(job.gpus));
  }
  std::vector<std::string> faults = job_faults(job);
  for (std::string& fault : layout_faults(job, run.layout)) faults.push_back(std::move(fault));
  if (!faults.empty()) throw Skip{faults.front()};
}

std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return values[i]; });
  std::vector<double> result(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) result[order[i]] = static_cast<double>(begin + end - 1) / 2;
    begin = end;
  }
  return result;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace

std::vector<PublishedRun> read_published_runs(const std::filesystem::path& path) {
  const std::vector<std::string> lines = split(read_file(path), '\n');
  const std::vector<std::string> header = split(lines.front(), '\t');
  for (const char* column : {"id", "model", "shape", "gpu", "n_gpu", "mbs", "gbs_seq", "seq", "precision"}) {
    if (std::ranges::find(header, column) == header.end())
      throw_input("{}: the header has no column \"{}\"", path.string(), column);
  }
  std::vector<PublishedRun> runs;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const std::vector<std::string> cells = split(lines[i], '\t');
    Row row;
    for (size_t c = 0; c < header.size() && c < cells.size(); ++c) row[header[c]] = cells[c];
    PublishedRun run;
    run.id = cell(row, "id");
    run.set = run.id.substr(0, run.id.find('-'));
    run.model = cell(row, "model");
    try {
      fill(row, run);
    } catch (const Skip& skip) {
      run.skipped = skip.why;
    } catch (const InputError& error) {
      run.skipped = error.what();
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

std::vector<ScoredRun> score(std::span<const PublishedRun> runs, const Constants& constants) {
  std::vector<ScoredRun> scored;
  for (const PublishedRun& run : runs) {
    if (!run.is_timed()) continue;
    Job job = run.job;
    job.constants = constants;
    ScoredRun row{&run, step_time(job, run.layout).seconds, 0};
    row.error = row.predicted_s / run.step_s - 1;
    scored.push_back(row);
  }
  return scored;
}

Score summarize(std::span<const ScoredRun> scored) {
  Score result;
  result.spearman = std::numeric_limits<double>::quiet_NaN();
  if (scored.empty()) return result;
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> groups;
  for (const ScoredRun& row : scored) {
    result.mean += std::abs(row.error);
    result.bias += row.error;
    result.most = std::max(result.most, std::abs(row.error));
    const Job& job = row.run->job;
    auto& [predicted, measured] =
        groups[fmt::format("{} {} {} {} {}", row.run->set, row.run->model, job.gpus, job.global_batch, job.seq_len)];
    predicted.push_back(row.predicted_s);
    measured.push_back(row.run->step_s);
  }
  const auto n = static_cast<double>(scored.size());
  result.mean /= n;
  result.bias /= n;
  double weighted = 0, weight = 0;
  for (const auto& [name, group] : groups) {
    if (group.first.size() < 3) continue;
    const auto size = static_cast<double>(group.first.size());
    weighted += size * correlation(ranks(group.first), ranks(group.second));
    weight += size;
  }
  if (weight > 0) result.spearman = weighted / weight;
  return result;
}

double best_constant_mfu_error(std::span<const PublishedRun> runs) {
  // Time at 100 % over the measured time: the best constant is one of these.
  std::vector<double> shares;
  for (const PublishedRun& run : runs) {
    if (!run.is_timed()) continue;
    const auto tokens = static_cast<double>(run.job.tokens_per_step());
    const double flops = flops_per_token(run.job.shape, run.job.seq_len, FlopConvention::palm) * tokens;
    const double machine = static_cast<double>(run.job.gpus) * run.job.accelerator.bf16_tflops * 1e12;
    shares.push_back(flops / machine / run.step_s);
  }
  double best = std::numeric_limits<double>::infinity();
  for (const double mfu : shares) {
    double error = 0;
    for (const double share : shares) error += std::abs(share / mfu - 1);
    best = std::min(best, error / static_cast<double>(shares.size()));
  }
  return best;
}

}  // namespace trireme::plan
