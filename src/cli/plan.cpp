// `trireme plan`: does a run fit, how fast is it, what limits it, what does it cost; before it is started.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/plan_report.h"
#include "cli/plan_rows.h"
#include "plan/calibration.h"
#include "plan/trainer_job.h"

namespace trireme::cli {
namespace {

using plan::Job;
using plan::Layout;

struct Options {
  std::string config, model, hardware;
  std::vector<std::string> overrides, hardware_values, constants;
  std::optional<int64_t> gpus, seq_len, global_batch;
  std::optional<std::string> precision, recompute, shard;
  plan::SearchSpace space;
  bool search = false, json_output = false, list = false;
  size_t top = 5;
  std::string write, rows, calibrate;
  RowsOptions rows_options;
  plan::Budget budget;
  std::optional<double> price, power, gpu_mtbf_hours;
  plan::Prices prices;
  plan::Failures failures;

  bool narrows() const {
    return space.tensor || space.context || space.pipeline || space.virtual_stages || space.expert ||
           space.micro_batch || recompute || shard;
  }
};

void set_constants(plan::Constants& constants, const std::vector<std::string>& texts) {
  const std::vector<std::pair<std::string, double plan::Constants::*>> known = {
      {"matmul_share", &plan::Constants::matmul_share},
      {"memory_share", &plan::Constants::memory_share},
      {"link_share", &plan::Constants::link_share},
      {"kernel_gap_us", &plan::Constants::kernel_gap_us},
      {"flash_share", &plan::Constants::flash_share},
      {"scale_up_latency_us", &plan::Constants::scale_up_latency_us},
      {"scale_out_latency_us", &plan::Constants::scale_out_latency_us},
      {"host_us", &plan::Constants::host_us},
      {"overlap_slowdown", &plan::Constants::overlap_slowdown},
      {"optimizer_bytes", &plan::Constants::optimizer_bytes}};
  std::vector<std::string> names, faults;
  for (const auto& [name, member] : known) names.push_back(name);
  for (const std::string& text : texts) {
    const size_t equals = std::min(text.find('='), text.size());
    const std::string key = text.substr(0, equals);
    const auto found = std::ranges::find(known, key, &std::pair<std::string, double plan::Constants::*>::first);
    double value = 0;
    const char* end = text.data() + text.size();
    const char* begin = std::min(text.data() + equals + 1, end);
    const auto [stop, error] = std::from_chars(begin, end, value);
    const bool share = key.ends_with("_share");
    if (found == known.end()) {
      const std::string near = nearest(key, names);
      faults.push_back(fmt::format(
          "there is no constant \"{}\"; {}", key,
          near.empty() ? fmt::format("there are {}", fmt::join(names, ", ")) : fmt::format("did you mean {}?", near)));
    } else if (error != std::errc() || stop != end || !(value >= 0) || (share && (value <= 0 || value > 1))) {
      faults.push_back(
          fmt::format("\"{}\": expected {}=number{}", text, key, share ? " above 0 and at most 1" : " of at least 0"));
    } else {
      constants.*(found->second) = value;
    }
  }
  if (!faults.empty()) throw InputError(faults);
}

config::Recompute recompute_from(const std::string& name) {
  for (const auto value : {config::Recompute::none, config::Recompute::selective, config::Recompute::full}) {
    if (name == config::name_of(value)) return value;
  }
  throw_input("recompute \"{}\" is not known; there are none, selective, full", name);
}

/// Options that were given although nothing reads them beside the others.
void refuse_unread(const CLI::App& command, const Options& options) {
  std::vector<std::string> faults;
  const auto given = [&](const std::string& name) { return command.get_option(name)->count() > 0; };
  const auto refuse = [&](std::initializer_list<const char*> names, const char* why) {
    for (const char* name : names) {
      if (given(name)) faults.push_back(fmt::format("{} {}", name, why));
    }
  };
  const auto only = [&](std::initializer_list<std::string_view> read, const char* what) {
    for (const CLI::Option* option : command.get_options()) {
      const std::string name = option->get_name();
      if (option->count() > 0 && std::ranges::find(read, name) == read.end())
        faults.push_back(fmt::format("{} says nothing to {}", name, what));
    }
  };
  if (options.list) {
    only({"--list"}, "--list");
  } else if (!options.rows.empty()) {
    only({"--rows", "--fit", "--leave-model-out", "--constant", "--json"}, "--rows");
  } else {
    refuse({"--fit", "--leave-model-out"}, "needs --rows, a table of measured runs");
    if (!options.budget.tokens && !options.budget.flops && !options.budget.days)
      refuse({"--price", "--power", "--power-overhead", "--carbon"}, "needs --tokens, --flops or --days");
    if (!options.gpu_mtbf_hours) refuse({"--restart-seconds", "--checkpoint-seconds"}, "needs --gpu-mtbf-hours");
    if (!options.config.empty() && !options.search && !options.narrows())
      refuse({"--top"}, "needs --search, or an axis that is kept");
    if (options.config.empty()) refuse({"--search"}, "is what --model does anyway; it is for a config file");
  }
  if (!faults.empty()) throw InputError(faults);
}

/// What has to be given and is not, and what does not go together: all at once.
void check(const Options& options) {
  std::vector<std::string> faults;
  const auto require = [&](bool holds, const char* message) {
    if (!holds) faults.emplace_back(message);
  };
  require(options.config.empty() != options.model.empty(),
          "a plan is of a config file or of a model by name: give CONFIG or --model, one of them");
  require(!options.hardware.empty(), "--hardware is missing: an accelerator, such as h100-sxm (--list shows all)");
  require(options.gpus.has_value(), "--gpus is missing: how many accelerators");
  require(!options.gpus || *options.gpus >= 1, "--gpus has to be at least 1");
  require(!options.seq_len || *options.seq_len >= 1, "--seq-len has to be at least 1");
  require(!options.global_batch || *options.global_batch >= 1, "--global-batch has to be at least 1");
  const bool with_config = !options.config.empty();
  require(!with_config || (!options.seq_len && !options.global_batch && !options.precision),
          "with a config file --seq-len, --global-batch and --precision are its own options: --set train.seq_len=..., "
          "train.global_batch_size, train.precision");
  require(with_config || options.overrides.empty(), "--set changes a config file, and none is given");
  require(options.write.empty() || with_config,
          "--write keeps the data, rates and steps of a config file, and none is given");
  require(options.gpu_mtbf_hours.value_or(1) > 0, "--gpu-mtbf-hours has to be above 0");
  if (!faults.empty()) throw InputError(faults);
}

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

Task make_task(const Options& options) {
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

plan::SearchSpace space_of(const Options& options) {
  plan::SearchSpace space = options.space;
  if (options.recompute) space.recompute = recompute_from(*options.recompute);
  if (options.shard) space.shard = plan::shard_from(*options.shard);
  return space;
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

void add_run(const Options& options, PlanReport& report) {
  const double mtbf_hours = options.gpu_mtbf_hours.value_or(0);
  if (mtbf_hours > 0) {
    plan::Failures failures = options.failures;
    failures.mean_time_between_s = plan::machine_mtbf_s(mtbf_hours, report.job.gpus);
    report.failures = failures;
    report.interval_s = plan::daly_interval_s(failures);
    report.goodput = plan::goodput(failures, report.interval_s);
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
void write_config(const Options& options, const Task& task, const PlanReport& report) {
  plan::SearchSpace space = plan::trainer_space();
  space.micro_batch = options.space.micro_batch;
  if (options.recompute) space.recompute = recompute_from(*options.recompute);
  const plan::SearchResult found = plan::search(task.job, space, 1);
  if (found.best.empty())
    throw_input(
        "nothing is written to {}: no layout that `trireme train` runs today fits. Data ranks that each keep "
        "everything need {:.1f} GiB of {} GiB; the plan's layout needs {}",
        options.write, found.smallest ? found.smallest->bytes / (1024.0 * 1024 * 1024) : 0.0,
        task.job.accelerator.memory_gib,
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

void run(const CLI::App& command, const Options& options) {
  refuse_unread(command, options);
  if (options.list) return list_all();
  if (!options.rows.empty()) {
    RowsOptions rows = options.rows_options;
    set_constants(rows.constants, options.constants);
    return score_rows(options.rows, rows, options.json_output);
  }
  check(options);
  Task task = make_task(options);
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
  if (options.narrows()) report.faster = plan::faster_than(report.job, {}, report.layout);
  if (!report.fits()) report.remedies = plan::remedies(report.job, report.layout);
  add_run(options, report);
  if (options.json_output)
    fmt::print("{}\n", to_json(report).dump(2));
  else
    fmt::print("{}", to_page(report));
  if (!options.write.empty()) write_config(options, task, report);
  if (!report.fits()) throw CLI::RuntimeError(static_cast<int>(ExitCode::does_not_fit));
}

void add_axes(CLI::App& command, Options& options) {
  const auto axis = [&](const char* name, std::optional<int64_t>& member, const char* help) {
    command.add_option(name, member, help)->type_name("N")->check(CLI::PositiveNumber)->group("Layout");
  };
  axis("--tensor", options.space.tensor, "Keep this size, and search the rest; so below");
  axis("--context", options.space.context, "Ranks that divide each sequence");
  axis("--pipeline", options.space.pipeline, "Ranks that divide the layers");
  axis("--virtual-stages", options.space.virtual_stages, "Stages on each pipeline rank; above 1: interleaved");
  axis("--expert", options.space.expert, "Ranks that divide the experts");
  axis("--micro-batch", options.space.micro_batch, "Sequences that a rank handles at once");
  command.add_option("--recompute", options.recompute, "none, selective or full")->group("Layout");
  command.add_option("--shard", options.shard, "none, optimizer, gradients or parameters (ZeRO 1, 2, 3)")
      ->group("Layout");
}

void add_cost(CLI::App& command, Options& options) {
  const auto number = [&](const char* name, auto& member, const char* help) {
    command.add_option(name, member, help)->type_name("X")->check(CLI::NonNegativeNumber)->group("Run");
  };
  number("--tokens", options.budget.tokens, "Length of the run; or --flops (6ND), or --days");
  number("--flops", options.budget.flops, "Length of the run in FLOPs, 6ND");
  number("--days", options.budget.days, "Length of the run in days");
  number("--price", options.price, "USD a GPU-hour; otherwise the middle of the catalogue's quotes");
  number("--power", options.power, "Watts of an accelerator; otherwise the catalogue's");
  number("--power-overhead", options.prices.overhead, "Power of the building / power of the accelerators (1.3)");
  number("--carbon", options.prices.grams_co2_per_kwh, "Grams of CO2 a kWh");
  number("--gpu-mtbf-hours", options.gpu_mtbf_hours, "Mean time between failures of one accelerator, hours");
  number("--restart-seconds", options.failures.restart_s, "From a failure until training goes on (600)");
  number("--checkpoint-seconds", options.failures.checkpoint_s, "That a checkpoint holds training up (30)");
}

}  // namespace

void add_plan(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("plan", "Does a run fit, how fast is it, what limits it, what does it cost");
  command->add_option("CONFIG", options->config, "A config file: its own layout is planned");
  command->add_option("--model", options->model, "A model by name, in place of a file: the best layout is searched");
  command->add_option("--hardware", options->hardware, "An accelerator, such as h100-sxm");
  command->add_option("--gpus", options->gpus, "How many accelerators")->type_name("N");
  command->add_option("--set", options->overrides, "SECTION.KEY=VALUE on top of CONFIG");
  command->add_option("--seq-len", options->seq_len, "Tokens of a sequence, with --model")->type_name("N");
  command->add_option("--global-batch", options->global_batch, "Sequences a step, with --model")->type_name("N");
  command->add_option("--precision", options->precision, "bf16, fp16, fp8 or fp32, with --model");
  command->add_flag("--search", options->search, "Search layouts also for CONFIG");
  command->add_option("--top", options->top, "Layouts that are listed")->check(CLI::Range(1, 1000));
  command->add_option("--hardware-value", options->hardware_values, "KEY=NUMBER in place of the catalogue's");
  command->add_option("--constant", options->constants, "KEY=NUMBER of the model of time, such as matmul_share=0.6");
  command->add_option("--calibrate", options->calibrate,
                      "Fit the four constants to a table's runs on this accelerator (docs/plan.md)");
  command->add_option("--write", options->write,
                      "A config file with the fastest layout that `trireme train` runs today");
  command->add_flag("--json", options->json_output, "Print JSON for programs");
  command->add_flag("--list", options->list, "List models and hardware");
  add_axes(*command, *options);
  add_cost(*command, *options);
  command->add_option("--rows", options->rows, "Score predictions against a table of measured runs (docs/plan.md)")
      ->group("Measured runs");
  command->add_flag("--fit", options->rows_options.fit, "Fit the constants to each stack's rows, and print them")
      ->group("Measured runs");
  command
      ->add_flag("--leave-model-out", options->rows_options.leave_model_out,
                 "Score each model with constants that were fitted to the others")
      ->group("Measured runs");
  command->footer(
      "Examples:\n"
      "  trireme plan --model llama3-405b --hardware h100-sxm --gpus 16384 --tokens 15.6e12\n"
      "  trireme plan configs/sotu.toml --hardware h100-sxm --gpus 8 --write best.toml\n"
      "\n"
      "Exit code 4: it does not fit.");
  command->callback([options, command] { run(*command, *options); });
}

}  // namespace trireme::cli
