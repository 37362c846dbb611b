// `trireme eval`: loss and bits per byte of a checkpoint on prepared text.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "comm/communicator.h"
#include "config/named_path.h"
#include "memory/caching_allocator.h"
#include "train/evaluate.h"
#include "train/inference.h"

namespace trireme::cli {
namespace {

using config::NamedPath;

struct Options {
  std::string checkpoint;
  std::vector<std::string> data;
  int64_t tokens = 0, seq_len = 0;
  bool json = false;
};

// A folder that is there is a folder, also with a '=' in its name.
NamedPath named(const std::string& text) {
  return std::filesystem::exists(text) ? NamedPath{"", text} : config::to_named_path(text);
}

std::vector<NamedPath> sets_of(const Options& options, const train::LoadedModel& loaded) {
  if (options.data.empty()) return loaded.held_out;
  std::vector<NamedPath> sets;
  for (const std::string& text : options.data) sets.push_back(named(text));
  return sets;
}

// All that is wrong with any of them, at once.
std::vector<std::shared_ptr<const data::Dataset>> open_all(const std::vector<NamedPath>& sets,
                                                           const train::LoadedModel& loaded) {
  std::vector<std::shared_ptr<const data::Dataset>> datasets;
  std::vector<std::string> faults;
  for (const NamedPath& set : sets) {
    try {
      datasets.push_back(data::Dataset::open(set.path));
    } catch (const InputError& error) {
      faults.insert(faults.end(), error.faults().begin(), error.faults().end());
      continue;
    }
    if (const std::string& hash = datasets.back()->tokenizer_hash(); hash != loaded.tokenizer.hash())
      faults.push_back(
          fmt::format("{} was prepared with the tokenizer {}, but {} was trained with {}; prepare the text with {}",
                      set.path.string(), hash, loaded.checkpoint.string(), loaded.tokenizer.hash(),
                      "`trireme data prepare --tokenizer RUN/tokenizer`"));
  }
  if (!faults.empty()) throw InputError(faults);
  return datasets;
}

void show(const Options& options, const train::LoadedModel& loaded, const NamedPath& set,
          const train::Evaluation& result) {
  if (options.json) {
    nlohmann::ordered_json line = {
        {"checkpoint", loaded.checkpoint.string()}, {"step", loaded.step}, {"data", set.path.string()}};
    if (!set.name.empty()) line["name"] = set.name;
    line["eval_loss"] = result.loss;
    line["eval_bits_per_byte"] = result.bits_per_byte;
    line["eval_tokens"] = result.tokens;
    line["eval_bytes"] = result.bytes;
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("{} on {}\n", loaded.checkpoint.string(), config::to_text(set));
    fmt::print("  loss            {:.4f} nats a token, {} tokens\n", result.loss, result.tokens);
    fmt::print("  bits per byte   {:.4f}, {} bytes of text\n", result.bits_per_byte, result.bytes);
    fmt::print("  time            {:.1f} s\n", result.seconds);
  }
  std::fflush(stdout);  // the next set may take long
}

void run(const Options& options) {
  memory::install_caching_allocator();
  const train::LoadedModel loaded = train::load_model(options.checkpoint);
  const std::vector<NamedPath> sets = sets_of(options, loaded);
  if (sets.empty())
    throw_input(
        "{} was trained without held-out text (data.eval_path, eval.sets); name a prepared data set with --data",
        loaded.checkpoint.string());
  const int64_t seq_len = options.seq_len > 0 ? options.seq_len : loaded.seq_len;
  if (seq_len > loaded.model->shape().max_seq_len)
    throw_input("--seq-len {} is longer than the model's longest sequence, {}", seq_len,
                loaded.model->shape().max_seq_len);
  const auto datasets = open_all(sets, loaded);
  const auto alone = comm::Communicator::solo("data");
  for (size_t i = 0; i < sets.size(); ++i)
    show(options, loaded, sets[i],
         *train::evaluate(*loaded.model, datasets[i], *alone,
                          {.seq_len = seq_len,
                           .micro_batch_size = loaded.micro_batch_size,
                           .max_tokens = options.tokens,
                           .wants_to_stop = {}}));
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "Loss and bits per byte of a checkpoint on held-out text");
  const auto options = std::make_shared<Options>();
  command->add_option("CHECKPOINT", options->checkpoint, "A checkpoint, or a run folder (its newest checkpoint)")
      ->required();
  command
      ->add_option(
          "--data", options->data,
          "A prepared data set, or NAME=FOLDER; repeatable. Without it, the run's data.eval_path and eval.sets")
      ->type_name("[NAME=]FOLDER")
      ->allow_extra_args(false);
  command->add_option("--tokens", options->tokens, "At most so many tokens of each set; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  command->add_option("--seq-len", options->seq_len, "Tokens a window; 0: as in training")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  command->add_flag("--json", options->json, "A line with a JSON object for each set in place of text");
  command->footer(
      "Windows do not overlap and every byte of text counts once, so bits per byte compare across tokenizers.\n"
      "Example:\n  trireme eval runs/sotu --data data/sotu/eval");
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
