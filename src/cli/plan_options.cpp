#include "cli/plan_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace trireme::cli {
namespace {

config::Recompute recompute_from(const std::string& name) {
  for (const auto value : {config::Recompute::none, config::Recompute::selective, config::Recompute::full}) {
    if (name == config::name_of(value)) return value;
  }
  throw_input("recompute \"{}\" is not known; there are none, selective, full", name);
}

/// Options that were given although nothing reads them beside the others.
void unread_faults(const CLI::App& command, const PlanOptions& options, std::vector<std::string>& faults) {
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
    if (!options.gpu_mtbf_hours)
      refuse({"--restart-seconds", "--checkpoint-seconds", "--failure-shape", "--repair-hours"},
             "needs --gpu-mtbf-hours");
    if (!options.config.empty() && !options.search && !options.narrows())
      refuse({"--top"}, "needs --search, or an axis that is kept");
    if (options.config.empty()) refuse({"--search"}, "is what --model does anyway; it is for a config file");
  }
}

/// What has to be given and is not, and what does not go together.
void plan_faults(const PlanOptions& options, std::vector<std::string>& faults) {
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
  const std::string drawing = std::filesystem::path(options.timeline).extension();
  require(options.timeline.empty() || drawing == ".json" || drawing == ".svg",
          "--timeline: FILE.json is for Perfetto, FILE.svg is a drawing; give one of them");
  require(options.gpu_mtbf_hours.value_or(1) > 0, "--gpu-mtbf-hours has to be above 0");
  require(options.failures.shape >= 0.2 && options.failures.shape <= 10, "--failure-shape has to be from 0.2 to 10");
}

void add_axes(CLI::App& command, PlanOptions& options) {
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

void add_cost(CLI::App& command, PlanOptions& options) {
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
  number("--failure-shape", options.failures.shape, "Shape of Weibull lifetimes; 1: exponential");
  number("--repair-hours", options.repair_hours, "Until a machine that failed is back: how many spares to hold");
  number("--checkpoint-seconds", options.failures.checkpoint_s, "That a checkpoint holds training up (30)");
}

}  // namespace

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
    const auto [key, value] = to_named_number(text);
    const auto found = std::ranges::find(known, key, &std::pair<std::string, double plan::Constants::*>::first);
    const bool share = key.ends_with("_share");
    if (found == known.end()) {
      const std::string near = nearest(key, names);
      faults.push_back(fmt::format(
          "there is no constant \"{}\"; {}", key,
          near.empty() ? fmt::format("there are {}", fmt::join(names, ", ")) : fmt::format("did you mean {}?", near)));
    } else if (!value || *value < 0 || (share && (*value == 0 || *value > 1))) {
      faults.push_back(
          fmt::format("\"{}\": expected {}=number{}", text, key, share ? " above 0 and at most 1" : " of at least 0"));
    } else {
      constants.*(found->second) = *value;
    }
  }
  if (!faults.empty()) throw InputError(faults);
}

plan::SearchSpace space_of(const PlanOptions& options) {
  plan::SearchSpace space = options.space;
  if (options.recompute) space.recompute = recompute_from(*options.recompute);
  if (options.shard) space.shard = plan::shard_from(*options.shard);
  return space;
}

void add_plan_options(CLI::App& command, PlanOptions& options) {
  command.add_option("CONFIG", options.config, "A config file: its own layout is planned");
  command.add_option("--model", options.model, "A model by name, in place of a file: the best layout is searched");
  command.add_option("--hardware", options.hardware, "An accelerator, such as h100-sxm");
  command.add_option("--gpus", options.gpus, "How many accelerators")->type_name("N");
  command.add_option("--set", options.overrides, "SECTION.KEY=VALUE on top of CONFIG");
  command.add_option("--seq-len", options.seq_len, "Tokens of a sequence, with --model")->type_name("N");
  command.add_option("--global-batch", options.global_batch, "Sequences a step, with --model")->type_name("N");
  command.add_option("--precision", options.precision, "bf16, fp16, fp8 or fp32, with --model");
  command.add_flag("--search", options.search, "Search layouts also for CONFIG");
  command.add_option("--top", options.top, "Layouts that are listed")->check(CLI::Range(1, 1000));
  command.add_option("--hardware-value", options.hardware_values, "KEY=NUMBER in place of the catalogue's");
  command.add_option("--constant", options.constants, "KEY=NUMBER of the model of time, such as matmul_share=0.6");
  command.add_option("--calibrate", options.calibrate,
                     "Fit the four constants to a table's runs on this accelerator (docs/plan.md)");
  command.add_option("--write", options.write, "A config file with the fastest layout that `trireme train` runs today");
  command.add_option("--timeline", options.timeline,
                     "One step, pass by pass: FILE.json for Perfetto, FILE.svg a drawing");
  command.add_flag("--megatron-memory", options.megatron, "Show Megatron-LM's own estimate beside ours");
  command.add_flag("--json", options.json_output, "Print JSON for programs");
  command.add_flag("--list", options.list, "List models and hardware");
  add_axes(command, options);
  add_cost(command, options);
  command.add_option("--rows", options.rows, "Score predictions against a table of measured runs (docs/plan.md)")
      ->group("Measured runs");
  command.add_flag("--fit", options.rows_options.fit, "Fit the constants to each stack's rows, and print them")
      ->group("Measured runs");
  command
      .add_flag("--leave-model-out", options.rows_options.leave_model_out,
                "Score each model with constants that were fitted to the others")
      ->group("Measured runs");
}

void refuse_beside(const CLI::App& command, std::initializer_list<const char*> names, const char* what) {
  std::vector<std::string> faults;
  for (const char* name : names)
    if (command.get_option(name)->count() > 0) faults.push_back(fmt::format("{} says nothing to {}", name, what));
  if (!faults.empty()) throw InputError(faults);
}

void check_plan_options(const CLI::App& command, const PlanOptions& options) {
  std::vector<std::string> faults;
  unread_faults(command, options, faults);
  if (!options.list && options.rows.empty()) plan_faults(options, faults);
  if (!faults.empty()) throw InputError(faults);
}

}  // namespace trireme::cli
