#include "train/run_worker.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <new>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/host.h"
#include "base/log.h"
#include "checkpoint/run_lock.h"
#include "checkpoint/store.h"
#include "comm/rendezvous.h"
#include "memory/caching_allocator.h"
#include "observe/matmul_rate.h"
#include "observe/memory_estimate.h"
#include "train/checkpointing.h"
#include "train/connect.h"
#include "train/evaluate.h"
#include "train/first_use.h"
#include "train/inference.h"
#include "train/profiler.h"
#include "train/replica_check.h"
#include "train/reporter.h"
#include "train/session.h"
#include "train/step.h"

namespace trireme::train {
namespace {

using resilience::Phase;
using resilience::StopReason;
using resilience::WorkerContext;

// A run that only skips steps learns nothing: weights or data are broken, and going on would only burn time.
constexpr int64_t kMostSkippedInARow = 10;

// A fault that every rank has seen: each ends with it by itself, and none needs to be woken. To abort the group could
// even hide it, from a rank that is still reading it.
class AgreedError : public Error {
 public:
  using Error::Error;
};

void set_phase(WorkerContext& context, Phase phase) {
  if (context.status) context.status->set_phase(phase);
}

// What one rank does for all: `work` on the first rank; its failure is everybody's, with the same text. It may take
// longer than any deadline (preparing a corpus): meanwhile the ranks meet every second, so that a dead one is noticed.
void on_first_rank(comm::Communicator& world, const std::function<void()>& work) {
  std::future<void> done;
  if (world.rank() == 0) done = std::async(std::launch::async, work);
  int64_t finished = 0;
  while (finished == 0) {
    if (world.rank() == 0) finished = done.wait_for(std::chrono::seconds(1)) == std::future_status::ready ? 1 : 0;
    finished = world.all_reduce_scalar(finished);
  }
  std::string answer;
  if (world.rank() == 0) {
    try {
      done.get();
    } catch (const Error& error) {
      answer = std::to_string(static_cast<int>(error.code())) + error.what();
    }
  }
  answer = world.all_gather_strings(answer).at(0);
  if (answer.empty()) return;
  throw AgreedError(static_cast<ExitCode>(answer[0] - '0'), answer.substr(1));
}

// Ranks may have been started with different files or --set options; they would train different models into one.
void require_same_config(const config::Config& config, comm::Communicator& world) {
  const std::vector<std::string> texts = world.all_gather_strings(config::to_toml(config));
  std::vector<std::string> faults;
  const config::Config first = config::parse_config(texts[0], "the config of rank 0", "/");
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const config::Config other = config::parse_config(texts[rank], fmt::format("the config of rank {}", rank), "/");
    for (const config::Difference& difference : config::differences(first, other))
      faults.push_back(fmt::format("{} is {} on rank 0 and {} on rank {}: every rank has to get the same options",
                                   difference.key, difference.was, difference.is, rank));
  }
  if (!faults.empty()) throw AgreedError(ExitCode::bad_input, InputError(faults).what());
}

// The run folder, as a person finds it: the resolved config, and the tokenizer, without which the weights say nothing.
void write_run_folder(const Session& session) {
  const std::filesystem::path& run = session.config.run.dir;
  write_file_durably(run / "config.toml", config::to_toml(session.config));
  const std::filesystem::path tokenizer = tokenizer_folder(run);
  if (std::filesystem::exists(tokenizer / "manifest.json") &&
      data::Tokenizer::load(tokenizer).hash() == session.dataset->tokenizer_hash())
    return;
  data::Tokenizer::load(session.dataset->tokenizer_folder()).save(tokenizer);
}

// All ranks measure at the same time, since they share the machine; the sum is what the run could reach.
observe::MatmulRate measure_together(Session& session) {
  if (!session.device.is_cpu()) return {};  // it measures the CPU; without a rate there is no MFU
  observe::MatmulRateOptions options;
  options.together = [&] { session.mesh->world().barrier(); };
  observe::MatmulRate rate = observe::measure_matmul_rate(activation_type(session.config.train.precision), options);
  rate.flops_per_second = session.mesh->world().all_reduce_scalar(rate.flops_per_second);
  memory::release_cached();  // its matrices, and what was freed while the session was made
  return rate;
}

class Run {
 public:
  Run(Session& session, WorkerContext& context)
      : s_(session),
        context_(context),
        store_(session.config.run.dir),
        last_step_(last_step_of(session.config.train)),
        reporter_(session, last_step_, context.progress.get()) {}

  ExitCode train() {
    resume();
    // The evaluation after the newest checkpoint may have been cut short.
    if (s_.progress.step > 0 && evaluation_due() && !evaluate(Evaluate::missing)) return obey_stop();
    if (s_.progress.step >= last_step_) {
      reporter_.say(fmt::format("nothing to do: the run has finished step {} of {}; raise train.{} to go on",
                                s_.progress.step, last_step_,
                                last_step_ < s_.config.train.steps ? "stop_after" : "steps"));
      return ExitCode::done;
    }
    while (s_.progress.step < last_step_) {
      set_phase(context_, Phase::training);
      reporter_.begin_step();
      profiler_->begin_step();
      const StepResult result = step(s_, [this] { return wants_to_stop(); });
      if (context_.status) {
        if (memory::caching_allocator_installed()) context_.status->set_memory(memory::held_in_words());
        context_.status->set_step(s_.progress.step);
      }
      reporter_.step(result);
      profiler_->end_step(result.tokens);
      check_skipped(result);
      // The checkpoint does not wait for the evaluation, which a stop or a crash may cut short.
      const bool saves = checkpoint_due(result);
      if (s_.config.parallel.check_replicas > 0 && (saves || due(s_.config.parallel.check_replicas))) check_replicas();
      if (saves) save();
      if (result.stop && s_.progress.step < last_step_) return obey_stop();
      if (evaluation_due() && !evaluate(Evaluate::all)) return obey_stop();
    }
    profiler_->finish();
    set_phase(context_, Phase::done);
    return ExitCode::done;
  }

 private:
  static int64_t last_step_of(const config::TrainConfig& train) {
    return train.stop_after > 0 ? std::min(train.stop_after, train.steps) : train.steps;
  }

  bool due(int64_t interval) const { return interval > 0 && s_.progress.step % interval == 0; }
  // Also after the last step, unless evaluation is off.
  bool evaluation_due() const {
    const int64_t interval = s_.config.eval.interval;
    return due(interval) || (interval > 0 && s_.progress.step == s_.config.train.steps);
  }

  // Weights that only yield skipped steps may be broken already: they do not push good checkpoints out, so the
  // checkpoint waits for the next step that is sound.
  bool checkpoint_due(const StepResult& result) {
    postponed_ = postponed_ || due(s_.config.checkpoint.interval);
    const bool must = result.stop || s_.progress.step == last_step_;
    return must || (postponed_ && !result.skipped);
  }

  void resume() {
    set_phase(context_, Phase::loading);
    resume_or_start(s_, store_, [&](const std::string& event) { reporter_.say(event); });
    if (context_.status && s_.progress.step > 0) context_.status->set_step(s_.progress.step);
    reporter_.rewind(s_.progress.step);
    on_first_rank(s_.mesh->world(), [&] { write_run_folder(s_); });
    const observe::MatmulRate rate = measure_together(s_);
    profiler_.emplace(s_, rate.flops_per_second / static_cast<double>(s_.mesh->size()),
                      [this](const std::string& table) { reporter_.say(table); });
    reporter_.start(rate.flops_per_second, rate.size,
                    s_.progress.step > 0 ? store_.step_folder(s_.progress.step) : std::filesystem::path());
  }

  bool wants_to_stop() {
    reason_ = resilience::stop_reason(s_.config.run.dir);
    const double limit = s_.config.run.time_limit_minutes;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - context_.started;
    time_is_over_ = limit > 0 && elapsed.count() > 60 * limit;
    return reason_ != StopReason::none || time_is_over_;
  }

  ExitCode obey_stop() {
    profiler_->finish();
    const std::string mine = reason_ != StopReason::none ? resilience::to_string(reason_, s_.config.run.dir)
                             : time_is_over_
                                 ? fmt::format("run.time_limit_minutes = {}", s_.config.run.time_limit_minutes)
                                 : "";
    std::string why;
    const std::vector<std::string> reasons = s_.mesh->world().all_gather_strings(mine);
    for (size_t rank = 0; rank < reasons.size() && why.empty(); ++rank)
      if (!reasons[rank].empty()) why = fmt::format("{} (rank {})", reasons[rank], rank);
    reporter_.warn(fmt::format("stopped by {} after step {}; saved, and the same command goes on from there", why,
                               s_.progress.step));
    if (s_.first_rank()) resilience::remove_stop_file(s_.config.run.dir);
    set_phase(context_, Phase::done);
    return ExitCode::stopped;
  }

  // Also before each checkpoint: what is saved is what all ranks agree on.
  void check_replicas() {
    const std::string difference = find_differing_replica(s_);
    if (difference.empty()) return;
    const std::optional<checkpoint::Entry> newest = store_.newest();
    throw AgreedError(
        ExitCode::worker_failed,
        fmt::format("{}. A fault of memory or of a processor, or of this program; the run would resume from {} "
                    "(parallel.check_replicas = {})",
                    difference, newest ? newest->folder.string() : "its beginning, since it has no checkpoint",
                    s_.config.parallel.check_replicas));
  }

  void check_skipped(const StepResult& result) {
    if (result.skipped && s_.config.optimizer.in_backward) {
      const std::optional<checkpoint::Entry> newest = store_.newest();
      throw AgreedError(
          ExitCode::bad_input,
          fmt::format(
              "the gradient of {} is not finite in step {}, and with optimizer.in_backward = true weights whose "
              "gradients came before it have been updated already, so that the step cannot be skipped. The run would "
              "resume from {}; optimizer.in_backward = false skips such steps, and a lower optimizer.lr may help",
              result.skipped_parameter.empty() ? "some weight" : result.skipped_parameter, s_.progress.step,
              newest ? newest->folder.string() : "its beginning, since it has no checkpoint"));
    }
    // In fp16 a step is skipped to find a scale that fits; only at the lowest one is it a sign of broken weights.
    const bool scaling = s_.loss_scaler->active() && result.loss_scale > 1 && !result.skipped_parameter.empty();
    skipped_in_a_row_ = result.skipped && !scaling ? skipped_in_a_row_ + 1 : 0;
    if (skipped_in_a_row_ < kMostSkippedInARow) return;
    // Whether the weights are broken or the data is cannot be told from here: they are kept, but apart, so that the run
    // resumes from a checkpoint that is known to be sound.
    const checkpoint::Store apart(s_.config.run.dir / "skipped");
    set_phase(context_, Phase::saving);
    reporter_.checkpoint(save_checkpoint(s_, apart, Pruning::none));
    const std::string kept = apart.step_folder(s_.progress.step).string();
    const std::optional<checkpoint::Entry> newest = store_.newest();
    const std::string sound = newest ? newest->folder.string() : "its beginning, since it has no checkpoint";
    if (result.skipped_parameter.empty())
      throw_input(
          "{} steps in a row had gradient norms above spike_guard.factor = {} times the median, {:.3g}, of the steps "
          "before; nothing was learned in them. If that is how the run is now, raise spike_guard.factor or set it to "
          "0. The weights from before them lie in {}; the run would resume from {}",
          skipped_in_a_row_, s_.config.spike_guard.factor, result.usual_norm, kept, sound);
    throw_input(
        "{} steps in a row had gradients that are not finite, last in {}; nothing was learned in them. A lower "
        "optimizer.lr, a longer lr_schedule.warmup_steps or train.precision = \"fp32\" may help. The weights from "
        "before them lie in {}; the run would resume from {}",
        skipped_in_a_row_, result.skipped_parameter, kept, sound);
  }

  // `missing`: only what the metrics of this step lack, which the first rank tells. False when it was left for a stop.
  enum class Evaluate { all, missing };
  bool evaluate(Evaluate which) {
    return evaluate_weights(which, nullptr) && (s_.ema == nullptr || evaluate_weights(which, s_.ema.get()));
  }

  // The weights, or their average, which is told from them in the names of what is evaluated.
  bool evaluate_weights(Evaluate which, const optim::Ema* average) {
    std::optional<parallel::DataParallel::Substitution> values;  // from the first that is wanted on
    const bool finished = evaluate_weights(which, average, values);
    if (values) values->end();
    return finished;
  }

  bool evaluate_weights(Evaluate which, const optim::Ema* average,
                        std::optional<parallel::DataParallel::Substitution>& values) {
    const std::string suffix = average != nullptr ? observe::kAverageSuffix : "";
    const auto wanted = [&](std::string_view number, const std::string& name) {
      if (which == Evaluate::missing && !s_.mesh->world().any(reporter_.lacks(observe::eval_key(number, name))))
        return false;
      set_phase(context_, Phase::evaluating);
      if (average != nullptr && !values) values.emplace(*s_.data_parallel, average->averages());
      return true;
    };
    for (const HeldOut& set : s_.held_out) {
      const std::string name = set.name + suffix;
      if (!wanted("eval_loss", name)) continue;
      const std::optional<Evaluation> evaluation =
          train::evaluate(*s_.model, set.dataset, s_.mesh->data(),
                          {.seq_len = s_.config.train.seq_len,
                           .micro_batch_size = s_.config.train.micro_batch_size,
                           .max_tokens = s_.config.eval.tokens,
                           .document_mask = s_.config.train.document_mask,
                           .collective = s_.data_parallel->forward_is_collective(),
                           .wants_to_stop = [this] { return wants_to_stop(); }});
      if (!evaluation) return false;
      reporter_.evaluation(name, *evaluation);
    }
    for (const ChoiceSuite& suite : s_.choices) {
      const std::string name = suite.name + suffix;
      if (!wanted("eval_acc", name)) continue;
      const std::optional<ChoiceEvaluation> evaluation =
          evaluate_choices(*s_.model, suite.questions, s_.mesh->data(),
                           {.micro_batch_size = s_.config.train.micro_batch_size,
                            .collective = s_.data_parallel->forward_is_collective(),
                            .wants_to_stop = [this] { return wants_to_stop(); }});
      if (!evaluation) return false;
      reporter_.choices(name, *evaluation);
    }
    return true;
  }

  void save() {
    set_phase(context_, Phase::saving);
    reporter_.sync();
    reporter_.checkpoint(save_checkpoint(s_, store_));
    postponed_ = false;
  }

  Session& s_;
  WorkerContext& context_;
  checkpoint::Store store_;
  int64_t last_step_;
  Reporter reporter_;
  std::optional<Profiler> profiler_;  // from resume() on
  StopReason reason_ = StopReason::none;
  bool time_is_over_ = false;
  int64_t skipped_in_a_row_ = 0;
  bool postponed_ = false;  // a checkpoint is due that a skipped step has put off
};

// With what was held and what helps; nothing for another error.
std::optional<memory::OutOfMemory> as_out_of_memory(const std::exception& error, const config::Config& config) {
  std::string what;
  if (dynamic_cast<const memory::OutOfMemory*>(&error) != nullptr)
    what = error.what();
  else if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    what = "out of memory: more was asked for outside of tensors; " + memory::held_in_words();
  else
    return std::nullopt;
  return memory::OutOfMemory(fmt::format("{}. Less is used by {}", what, observe::ways_to_less_memory(config)));
}

}  // namespace

ExitCode run_worker(config::Config config, WorkerContext& context) {
  const comm::LaunchEnvironment& environment = context.environment;
  if (environment.world_size > 1) log::set_prefix(fmt::format("[rank {} @ {}] ", environment.rank, host_name()));
  // A file-size limit (ulimit -f) is then an error of write(2), named like a full disk, in place of a silent death.
  std::signal(SIGXFSZ, SIG_IGN);
  if (!context.thread_note.empty()) log::info("{}", context.thread_note);
  if (config.memory.caching_allocator) memory::install_caching_allocator();
  // Matrix products of other numbers of threads differ in the last bit.
  const bool one_thread = config.run.reproducible == config::Reproducible::any_workers;
  if (one_thread && context.threads > 1 && environment.rank == 0)
    log::info("one thread a worker computes, not {}: run.reproducible = \"any_workers\"", context.threads);
  at::set_num_threads(one_thread ? 1 : context.threads);
  const int64_t accumulation = config::resolve_world(config, environment.world_size);

  std::shared_ptr<comm::Communicator> world;
  try {
    world = connect_world(context, config.comm, config.run.dir, config.parallel, config.run.device);
  } catch (const comm::Cancelled& cancelled) {
    log::warning("{}", cancelled.what());
    return ExitCode::stopped;
  }
  std::optional<checkpoint::RunLock> lock;  // the first rank's, as long as the run
  // Outlives the report of a failure: its end may wait for a file system that hangs, and the peers wait for the report.
  std::unique_ptr<Session> session;
  try {
    require_same_config(config, *world);
    on_first_rank(*world, [&] {
      lock.emplace(checkpoint::RunLock::acquire(config.run.dir));
      if (!lock->notice().empty()) log::warning("{}", lock->notice());
      if (context.status) return;  // our own launcher has done the rest, before it started us
      resilience::remove_stop_file(config.run.dir);
      prepare_on_first_use(config, [](const std::string& text) { log::info("{}", text); });
    });
    session = make_session(config, accumulation, make_mesh(world, config.parallel));
    return Run(*session, context).train();
  } catch (const std::exception& any) {
    const std::optional<memory::OutOfMemory> out_of_memory = as_out_of_memory(any, config);
    const std::exception& error = out_of_memory ? *out_of_memory : any;
    const auto* ours = dynamic_cast<const Error*>(&error);
    if (context.status) context.status->report_error(ours != nullptr ? ours->code() : ExitCode::internal, error.what());
    if (dynamic_cast<const AgreedError*>(&error) != nullptr) throw;
    // What the user can mend needs no record of the collectives before it.
    const bool with_record = ours == nullptr || ours->code() != ExitCode::bad_input;
    world->abort(error.what(), with_record);
    // Wakes those that sleep in a group of its own.
    if (session) {
      for (const char* axis : {"data", "shard", "replicate"}) session->mesh->axis(axis).abort(error.what(), false);
      if (comm::Communicator* neighbours = session->data_parallel->neighbours()) neighbours->abort(error.what(), false);
    }
    if (out_of_memory) throw *out_of_memory;
    throw;
  }
}

}  // namespace trireme::train
