// `trireme plan`: does a run fit, how fast is it, what limits it, what does it cost; before it is started.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/plan_options.h"
#include "cli/plan_report.h"
#include "cli/plan_timeline.h"
#include "plan/calibration.h"
#include "plan/trainer_job.h"

namespace trireme::cli {
namespace {

using plan::Job;
using plan::Layout;

/// The job and, for a config file, the layout that it asks for.
struct Task {
  Job job;
  std::optional<Layout> asked;
  config::Config config;
  std::vector<std::string> assumed;
};

/// Constants that fit the measured runs of the job's accelerator and precision.
void calibrate_for(Task& task, const std::string& file) {
  std::vector<plan::PublishedRun> runs = plan::read_published_runs(file);
  std::erase_if(runs, [&](const plan::PublishedRun& run) {
    return run.job.accelerator.name != task.job.accelerator.name || run.job.precision != task.job.precision;
  });
  const plan::Calibration fitted = plan::calibrate(runs, task.job.constants);
  if (fitted.rows == 0)
    throw_input("{} has no run that can be planned on {} in {}; --constant sets constants by hand", file,
                task.job.accelerator.name, name_of(task.job.precision));
  task.job.constants = fitted.constants;
  task.assumed.push_back(fmt::format("constants fitted to {} runs of {}: mean error on them {:.1f} %", fitted.rows,
                                     file, 100 * fitted.mean_error));
}

Task make_task(const PlanOptions& options) {
  Task task;
  plan::Accelerator accelerator = plan::accelerator(options.hardware);
  plan::set_values(accelerator, options.hardware_values);
  if (!options.config.empty()) {
    task.config = config::load_config(options.config, options.overrides);
    plan::TrainerJob own = plan::trainer_job(task.config, *options.gpus, accelerator);
    task.job = std::move(own.job);
    task.asked = own.layout;
  } else {
    Job& job = task.job;
    job.shape = describe::work_preset(options.model);
    job.accelerator = accelerator;
    job.gpus = *options.gpus;
    job.seq_len = options.seq_len.value_or(plan::default_seq_len(job.shape));
    job.global_batch = options.global_batch.value_or(plan::default_global_batch(job.seq_len, job.gpus));
    if (options.precision) job.precision = plan::precision_from(*options.precision);
    if (!options.seq_len) task.assumed.emplace_back("--seq-len is not given: 8192, or what the model is made for");
    if (!options.global_batch)
      task.assumed.emplace_back("--global-batch is not given: 4 Mi tokens, or 1024 a GPU where that is more");
  }
  if (!options.calibrate.empty()) calibrate_for(task, options.calibrate);
  set_constants(task.job.constants, options.constants);
  std::vector<std::string> faults = job_faults(task.job);
  if (!faults.empty()) throw InputError(faults);
  return task;
}

/// Why nothing is legal: the faults of the layout that was asked for, with what is not given left at 1.
[[noreturn]] void fail_without_layout(const Job& job, const plan::SearchSpace& space) {
  Layout layout;
  layout.tensor = space.tensor.value_or(1);
  layout.context = space.context.value_or(1);
  layout.pipeline = space.pipeline.value_or(1);
  layout.virtual_stages = space.virtual_stages.value_or(1);
  layout.expert = space.expert.value_or(1);
  layout.micro_batch = space.micro_batch.value_or(1);
  layout.shard = space.shard.value_or(plan::Shard::none);
  if (layout.virtual_stages > 1) layout.schedule = plan::PipelineSchedule::interleaved;
  const int64_t others = layout.tensor * layout.context * layout.pipeline;
  layout.data = std::max<int64_t>(others > 0 ? job.gpus / others : 1, 1);
  std::vector<std::string> faults = layout_faults(job, layout);
  if (faults.empty())
    faults.push_back(
        fmt::format("no layout of {} accelerators divides a batch of {} sequences", job.gpus, job.global_batch));
  throw InputError(faults);
}

void add_run(const PlanOptions& options, PlanReport& report) {
  const double mtbf_hours = options.gpu_mtbf_hours.value_or(0);
  if (mtbf_hours > 0) {
    plan::Failures failures = options.failures;
    failures.mean_time_between_s = plan::machine_mtbf_s(mtbf_hours, report.job.gpus);
    report.failures = failures;
    report.interval_s = plan::daly_interval_s(failures);
    constexpr int64_t kFailuresToSee = 200'000;  // a tenth of a percent
    report.goodput = failures.shape == 1 ? plan::goodput(failures, report.interval_s)
                                         : plan::simulate_goodput(failures, report.interval_s, kFailuresToSee, 1);
    if (options.repair_hours) {
      // A machine is a domain of fast links: one that fails takes all of it away.
      const double size = report.job.accelerator.scale_up_domain;
      const auto machines = static_cast<int64_t>(std::ceil(static_cast<double>(report.job.gpus) / size));
      report.spare_machines = plan::spares(machines, mtbf_hours / size, *options.repair_hours, 0.99);
    }
  }
  report.prices = options.prices;
  report.prices.usd_per_gpu_hour = options.price.value_or(plan::price_usd_per_hour(report.job.accelerator));
  report.prices.watts = options.power.value_or(report.job.accelerator.power_w);
  if (options.price) report.job.accelerator.price_note.clear();
  if (options.budget.tokens || options.budget.flops || options.budget.days)
    report.campaign =
        plan::plan_campaign(report.job, report.time.seconds, report.goodput, options.budget, report.prices);
}

/// The trainer's own space: its fastest layout that fits, in a config file that it takes.
void write_config(const PlanOptions& options, const Task& task, const PlanReport& report) {
  plan::SearchSpace space = plan::trainer_space();
  space.micro_batch = options.space.micro_batch;
  space.recompute = space_of(options).recompute;
  const plan::SearchResult found = plan::search(task.job, space, 1);
  if (found.best.empty())
    throw_input(
        "nothing is written to {}: no layout that `trireme train` runs today fits. Data ranks that divide "
        "what they can need {:.1f} GiB of {} GiB; the plan's layout needs {}",
        options.write, found.smallest ? found.smallest->bytes / plan::kGiB : 0.0, task.job.accelerator.memory_gib,
        report.missing.empty() ? "less memory a rank" : fmt::format("{}", fmt::join(report.missing, ", ")));
  write_file_durably(options.write, config::to_toml(plan::with_layout(task.config, found.best.front().layout)));
  fmt::print(stderr, "written: {} ({})\n", options.write, to_text(found.best.front().layout));
}

void list_all() {
  fmt::print("Models:\n  {}\n\nHardware (bf16 TFLOP/s, GiB, GB/s to peers, GB/s of network):\n",
             fmt::join(describe::work_preset_names(), ", "));
  for (const plan::Accelerator& row : plan::accelerators()) {
    fmt::print("  {:<22} {:>6} {:>5} {:>7} {:>6}   {}\n", row.name, row.bf16_tflops, row.memory_gib, row.scale_up_gbs,
               row.scale_out_gbs, fmt::join(plan::accelerator_aliases(row.name), ", "));
  }
  fmt::print("\nNumbers that --hardware-value replaces: {}\n", fmt::join(plan::value_names(), ", "));
}

PlanReport make_report(const PlanOptions& options, const Task& task) {
  PlanReport report;
  report.job = task.job;
  report.assumed = task.assumed;
  const plan::SearchSpace space = space_of(options);
  if (!task.asked || options.search || options.narrows()) {
    report.search = plan::search(task.job, space, options.top);
    if (report.search->legal == 0) fail_without_layout(task.job, space);
    report.layout = report.search->best.empty() ? report.search->smallest->layout : report.search->best.front().layout;
  } else {
    report.layout = *task.asked;
  }
  report.memory = plan::memory_plan(report.job, report.layout);
  report.time = plan::step_time(report.job, report.layout);
  report.what_if = plan::what_if(report.job, report.layout);
  report.missing = plan::missing_in_trainer(report.layout);
  if (options.megatron) report.megatron = plan::megatron_memory(report.job, report.layout);
  if (options.narrows()) report.faster = plan::faster_than(report.job, {}, report.layout);
  if (!report.fits()) report.remedies = plan::remedies(report.job, report.layout);
  add_run(options, report);
  return report;
}

void end_unless(bool fits) {
  if (!fits) throw CLI::RuntimeError(static_cast<int>(ExitCode::does_not_fit));
}

void run(const CLI::App& command, const PlanOptions& options) {
  check_plan_options(command, options);
  if (options.list) return list_all();
  if (!options.rows.empty()) {
    RowsOptions rows = options.rows_options;
    set_constants(rows.constants, options.constants);
    return score_rows(options.rows, rows, options.json_output);
  }
  const Task task = make_task(options);
  const PlanReport report = make_report(options, task);
  if (options.json_output)
    fmt::print("{}\n", to_json(report).dump(2));
  else
    fmt::print("{}", to_page(report));
  if (!options.timeline.empty()) write_timeline(options.timeline, report);
  if (!options.write.empty()) write_config(options, task, report);
  end_unless(report.fits());
}

/// A config file or a model by name. `mixed`: the other one is of the other kind, so that options of one kind alone are
/// for the one that takes them.
PlanOptions with_subject(PlanOptions options, const std::string& subject, bool model, bool mixed) {
  (model ? options.model : options.config) = subject;
  if (!mixed) return options;
  if (model) {
    options.overrides.clear();
  } else {
    options.seq_len = options.global_batch = std::nullopt;
    options.precision = std::nullopt;
  }
  return options;
}

void compare(const CLI::App& command, const PlanOptions& options) {
  refuse_beside(command,
                {"--write", "--timeline", "--rows", "--list", "--model", "CONFIG", "--top", "--megatron-memory"},
                "plan compare");
  const std::vector<std::string> models = describe::work_preset_names();
  const auto is_model = [&](const std::string& subject) {
    return std::ranges::find(models, subject) != models.end() && !std::filesystem::exists(subject);
  };
  const bool mixed = is_model(options.left) != is_model(options.right);
  std::vector<PlanReport> reports;
  std::vector<std::string> faults;
  for (const auto& [name, subject] : {std::pair("A", options.left), std::pair("B", options.right)}) {
    try {
      const PlanOptions one = with_subject(options, subject, is_model(subject), mixed);
      check_plan_options(command, one);
      reports.push_back(make_report(one, make_task(one)));
    } catch (const InputError& error) {
      for (const std::string& fault : error.faults()) faults.push_back(fmt::format("{}, {}: {}", name, subject, fault));
    }
  }
  if (!faults.empty()) throw InputError(faults);
  if (options.json_output)
    fmt::print("{}\n", comparison_json(reports[0], reports[1]).dump(2));
  else
    fmt::print("{}", to_comparison(options.left, reports[0], options.right, reports[1]));
  end_unless(reports[0].fits() && reports[1].fits());
}

void explain_term(const CLI::App& command, PlanOptions options) {
  refuse_beside(command,
                {"--write", "--timeline", "--rows", "--list", "--top", "--megatron-memory", "--tokens", "--flops",
                 "--days", "--price", "--power", "--power-overhead", "--carbon", "--gpu-mtbf-hours", "--repair-hours",
                 "--restart-seconds", "--checkpoint-seconds", "--failure-shape"},
                "plan explain");
  if (!options.config.empty() && !options.explained_config.empty())
    throw_input("plan explain is of one plan, and {} and {} are given; give one of them", options.config,
                options.explained_config);
  if (!options.explained_config.empty()) options.config = options.explained_config;
  check_plan_options(command, options);
  const PlanReport report = make_report(options, make_task(options));
  if (options.term == "all") {
    const std::vector<std::string> names = plan::explained(report.job, report.layout);
    if (options.json_output)
      fmt::print("{}\n", nlohmann::json(names).dump(2));
    else
      fmt::print("{}\n", fmt::join(names, "\n"));
  } else {
    const plan::Explanation explanation = plan::explain(report.job, report.layout, options.term);
    if (options.json_output)
      fmt::print("{}\n", to_json(explanation).dump(2));
    else
      fmt::print("{}", to_page(explanation, report));
  }
  end_unless(report.fits());
}

}  // namespace

void add_plan(CLI::App& app) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "Does a run fit, how fast is it, what limits it, what does it cost");
  add_plan_options(*command, *options);
  command->footer(
      "Examples:\n"
      "  trireme plan --model llama3-405b --hardware h100-sxm --gpus 16384 --tokens 15.6e12\n"
      "  trireme plan configs/sotu.toml --hardware h100-sxm --gpus 8 --write best.toml\n"
      "  trireme plan compare llama3-8b qwen3-30b-a3b --hardware h100-sxm --gpus 64\n"
      "  trireme plan explain bubble --model llama3-405b --hardware h100-sxm --gpus 16384\n"
      "\n"
      "Exit code 4: it does not fit.");
  CLI::App* comparison = command->add_subcommand("compare", "Two plans beside each other");
  comparison->add_option("A", options->left, "A config file, or a model by name")->required();
  comparison->add_option("B", options->right, "The other")->required();
  CLI::App* explanation = command->add_subcommand("explain", "How a number comes about: formula, numbers, source");
  explanation->add_option("TERM", options->term, "A term of the step or a purpose of memory; all: list them")
      ->required();
  explanation->add_option("CONFIG", options->explained_config, "A config file, where no --model is given");
  for (CLI::App* subcommand : {comparison, explanation}) subcommand->fallthrough();
  command->require_subcommand(0, 1);
  command->callback([=] {
    if (comparison->parsed()) return compare(*command, *options);
    if (explanation->parsed()) return explain_term(*command, *options);
    run(*command, *options);
  });
}

}  // namespace trireme::cli
