#include "train/reporter.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <cmath>

#include "base/cpu_level.h"
#include "base/host.h"
#include "base/machine.h"
#include "describe/model_shape.h"
#include "memory/caching_allocator.h"
#include "memory/process_memory.h"
#include "observe/startup_report.h"
#include "ops/tile_product.h"
#include "train/histograms.h"

namespace trireme::train {
namespace {

observe::Console make_console(const Session& session, int64_t last_step, int progress_fd) {
  if (!session.first_rank()) return observe::Console::silent();
  return observe::Console({.progress_fd = progress_fd, .total_steps = last_step});
}

// Since the last call.
observe::TensorMemory tensor_memory(const StepResult& result, bool on_cpu) {
  const memory::AllocatorStatistics now = memory::allocator_statistics();
  memory::reset_peak();
  observe::TensorMemory memory;
  memory.allocated = now.live_bytes;
  memory.reserved = now.system_bytes;
  memory.peak_allocated = now.peak_live_bytes;
  memory.kept_for_backward = result.kept_activation_bytes;
  memory.peak_device = now.peak_device_bytes;
  for (int i = 0; i < memory::kPurposes; ++i) {
    const auto purpose = static_cast<memory::Purpose>(i);
    if (const int64_t bytes = memory::of(now.at_peak, purpose); bytes > 0)
      memory.at_peak.emplace_back(memory::name_of(purpose), bytes);
    // Of an accelerator only the host's tensors are counted, which are of one tier.
    if (const int64_t bytes = memory::of(now.host_at_peak, purpose); on_cpu && bytes > 0)
      memory.host_at_peak.emplace_back(memory::name_of(purpose), bytes);
  }
  return memory;
}

}  // namespace

Reporter::Reporter(const Session& session, int64_t last_step, int progress_fd)
    : session_(session), last_step_(last_step), console_(make_console(session, last_step, progress_fd)) {
  if (session.first_rank()) metrics_ = std::make_unique<observe::MetricsFile>(session.config.run.dir / "metrics.jsonl");
}

void Reporter::say(const std::string& text) { console_.print(text); }
void Reporter::warn(const std::string& text) { console_.warning(text); }

void Reporter::start(double matmul_rate, int64_t matmul_size, const std::filesystem::path& resumed_from) {
  const config::Config& config = session_.config;
  observe::ThroughputOptions options;
  options.flops_per_token = describe::model_flops_per_token(config.model, config.train.seq_len);
  options.matmul_flops_per_second = matmul_rate;
  options.total_steps = last_step_;
  meter_ = std::make_unique<observe::ThroughputMeter>(options);

  observe::StartupReport report;
  report.version = TRIREME_VERSION;
  report.torch = TORCH_VERSION;
  report.host = host_name();
  report.cores = machine_cores();  // a worker is pinned to its share of them
  report.threads = at::get_num_threads();
  report.instruction_set = name_of(cpu_level());
  if (ops::tile_products_apply()) report.instruction_set += " and AMX";
  report.memory_bytes = usable_memory_bytes();
  report.workers = session_.mesh->size();
  if (report.workers > 1) report.mesh = session_.mesh->grid().table();
  const memory::BesideBlocks beside = memory::beside_blocks();
  report.libraries_bytes = beside.libraries;
  report.mapped_bytes = beside.mapped;
  report.matmul_flops_per_second = matmul_rate;
  report.matmul_size = matmul_size;
  report.config = config;
  report.accumulation = session_.accumulation;
  report.train_documents = session_.dataset->document_count();
  report.train_tokens = session_.dataset->token_count();
  report.train_bytes = session_.dataset->text_bytes();
  for (const auto& [name, dataset] : session_.held_out)
    report.held_out.push_back(
        {{name, dataset->folder()}, dataset->document_count(), dataset->token_count(), dataset->text_bytes()});
  for (const ChoiceSuite& suite : session_.choices)
    report.choices.push_back({{suite.name, suite.path}, static_cast<int64_t>(suite.questions.size())});
  report.first_step = session_.progress.step;
  report.resumed_from = resumed_from;
  console_.print(observe::to_text(report));
  memory::reset_peak();
}

void Reporter::rewind(int64_t step) {
  // At step 0 there is nothing to keep, not even an evaluation before the first step.
  if (metrics_ == nullptr) return;
  metrics_->rewind(step > 0 ? step : -1);
  if (session_.config.metrics.tensorboard)
    tensorboard_ = std::make_unique<observe::TensorBoardFile>(session_.config.run.dir / "tensorboard", step + 1);
}

void Reporter::step(const StepResult& result) {
  const config::MetricsConfig& metrics = session_.config.metrics;
  meter_->end_step(result.tokens, result.data_seconds, result.exposed_comm_seconds);
  const int64_t step = session_.progress.step;
  std::vector<observe::NamedHistogram> histograms;  // all ranks take part: each may hold a shard alone
  if (metrics.tensorboard && metrics.histograms > 0 && step % metrics.histograms == 0)
    histograms = histograms_of(session_, result.loss_scale);
  if (metrics_ == nullptr) return;
  if (result.skipped || step % metrics.interval == 0 || step == last_step_) {
    observe::StepRecord record;
    record.step = step;
    record.loss = result.loss;
    record.grad_norm = result.grad_norm;
    record.lr = result.learning_rate;
    record.tokens = session_.progress.tokens;
    meter_->report(record);
    record.peak_memory_bytes = result.peak_memory_bytes;
    if (memory::caching_allocator_installed()) record.memory = tensor_memory(result, session_.device.is_cpu());
    if (session_.config.train.z_loss > 0) record.z_loss = result.z_loss;
    if (session_.loss_scaler->active()) record.loss_scale = result.loss_scale;
    record.skipped = result.skipped;
    record.skipped_late = result.skipped && session_.config.optimizer.in_backward;
    record.usual_norm = result.usual_norm;
    record.skipped_parameter = result.skipped_parameter;
    if (metrics.layer_grad_norms) {
      const std::vector<nn::Parameter*>& parameters = session_.optimizer->parameters();
      for (size_t i = 0; i < parameters.size(); ++i)
        record.layer_grad_norms.emplace_back(parameters[i]->name(), result.parameter_norms[i]);
    }
    metrics_->append(record);
    if (tensorboard_ != nullptr) tensorboard_->append(record);
    console_.step(record);
  }
  if (tensorboard_ != nullptr && !histograms.empty()) tensorboard_->histograms(step, histograms);
  console_.progress(step, result.loss, meter_->seconds_left(step));
}

void Reporter::evaluation(const std::string& set, const Evaluation& evaluation) {
  if (metrics_ == nullptr) return;
  observe::EvalRecord record;
  record.step = session_.progress.step;
  record.set = set;
  record.eval_loss = evaluation.loss;
  record.eval_bits_per_byte = evaluation.bits_per_byte;
  record.tokens = evaluation.tokens;
  record.bytes = evaluation.bytes;
  record.seconds = evaluation.seconds;
  metrics_->append(record);
  if (tensorboard_ != nullptr) tensorboard_->append(record);
  console_.evaluation(record);
}

void Reporter::choices(const std::string& suite, const ChoiceEvaluation& evaluation) {
  if (metrics_ == nullptr) return;
  observe::ChoiceRecord record;
  record.step = session_.progress.step;
  record.suite = suite;
  record.acc = evaluation.acc;
  record.acc_norm = evaluation.acc_norm;
  record.questions = static_cast<int64_t>(evaluation.questions.size());
  record.seconds = evaluation.seconds;
  metrics_->append(record);
  if (tensorboard_ != nullptr) tensorboard_->append(record);
  console_.choices(record);
}

bool Reporter::lacks(const std::string& key) const {
  return metrics_ != nullptr && !metrics_->has(session_.progress.step, key);
}

void Reporter::sync() {
  if (metrics_ != nullptr) metrics_->sync();
}

void Reporter::checkpoint(const checkpoint::SaveReport& report) {
  console_.checkpoint(session_.progress.step, report.folder, report.bytes, report.seconds);
}

}  // namespace trireme::train
