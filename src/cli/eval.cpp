// `trireme eval`: loss and bits per byte of a checkpoint on prepared text, and how it answers questions.
#include <ATen/ATen.h>

#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/ema_option.h"
#include "comm/communicator.h"
#include "config/named_path.h"
#include "memory/caching_allocator.h"
#include "train/choice_scores.h"
#include "train/evaluate.h"
#include "train/inference.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using config::NamedPath;

struct Options {
  std::string checkpoint;
  std::vector<std::string> data, choices;
  std::string items;
  int64_t tokens = 0, seq_len = 0;
  train::Weights weights = train::Weights::trained;
  bool json = false;
};

// A folder that is there is a folder, also with a '=' in its name.
NamedPath named(const std::string& text) {
  return std::filesystem::exists(text) ? NamedPath{"", text} : config::to_named_path(text);
}

std::vector<NamedPath> named(const std::vector<std::string>& texts) {
  std::vector<NamedPath> result;
  for (const std::string& text : texts) result.push_back(named(text));
  return result;
}

struct Inputs {
  std::vector<NamedPath> sets, choices;
};

// What the command line names; all that the run was measured by where it names nothing.
Inputs inputs_of(const Options& options, const train::LoadedModel& loaded) {
  Inputs inputs{loaded.held_out, loaded.choices};
  if (!options.data.empty() || !options.choices.empty()) inputs = {named(options.data), named(options.choices)};
  std::set<std::string> names;
  for (NamedPath& file : inputs.choices) {
    if (file.name.empty()) file.name = file.path.stem().string();
    if (!names.insert(file.name).second)
      throw_input("two files of questions have the name \"{}\"; give one another with --choices NAME=FILE", file.name);
  }
  if (inputs.sets.empty() && inputs.choices.empty())
    throw_input(
        "{} was trained without held-out text and questions (data.eval_path, eval.sets, eval.choices); name a prepared "
        "data set with --data, or a file of questions with --choices",
        loaded.checkpoint.string());
  if (!options.items.empty() && inputs.choices.empty())
    throw_input("--items is for the scores of questions; name a file of them with --choices");
  return inputs;
}

struct Opened {
  std::vector<std::shared_ptr<const data::Dataset>> datasets;
  std::vector<train::ChoiceSuite> choices;
};

// All that is wrong with any of them, at once.
Opened open_all(const Inputs& inputs, const train::LoadedModel& loaded) {
  Opened opened;
  std::vector<std::string> faults;
  for (const NamedPath& set : inputs.sets) {
    try {
      opened.datasets.push_back(data::Dataset::open(set.path));
    } catch (const InputError& error) {
      faults.insert(faults.end(), error.faults().begin(), error.faults().end());
      continue;
    }
    if (const std::string& hash = opened.datasets.back()->tokenizer_hash(); hash != loaded.tokenizer.hash())
      faults.push_back(
          fmt::format("{} was prepared with the tokenizer {}, but {} was trained with {}; prepare the text with {}",
                      set.path.string(), hash, loaded.checkpoint.string(), loaded.tokenizer.hash(),
                      "`trireme data prepare --tokenizer RUN/tokenizer`"));
  }
  opened.choices = train::read_suites(inputs.choices, loaded.tokenizer, loaded.model->shape().max_seq_len, faults);
  if (!faults.empty()) throw InputError(faults);
  return opened;
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

void show(const Options& options, const train::LoadedModel& loaded, const train::ChoiceSuite& suite,
          const train::ChoiceEvaluation& result) {
  if (options.json) {
    const nlohmann::ordered_json line = {{"checkpoint", loaded.checkpoint.string()},
                                         {"step", loaded.step},
                                         {"choices", suite.path.string()},
                                         {"name", suite.name},
                                         {"eval_acc", result.acc},
                                         {"eval_acc_norm", result.acc_norm},
                                         {"eval_questions", result.questions.size()}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("{} on {}={}\n", loaded.checkpoint.string(), suite.name, suite.path.string());
    fmt::print("  acc             {:.4f} of {} questions\n", result.acc, result.questions.size());
    fmt::print("  acc_norm        {:.4f}, scores by bytes of the choice\n", result.acc_norm);
    fmt::print("  time            {:.1f} s\n", result.seconds);
  }
  std::fflush(stdout);
}

// A line for each question: how every choice was scored.
std::string item_lines(const train::ChoiceSuite& suite, const train::ChoiceEvaluation& result) {
  std::string lines;
  for (size_t i = 0; i < suite.questions.size(); ++i) {
    const data::Question& question = suite.questions[i];
    nlohmann::ordered_json line = {{"name", suite.name},
                                   {"line", question.line},
                                   {"answer", question.answer},
                                   {"acc", result.questions[i].acc},
                                   {"acc_norm", result.questions[i].acc_norm},
                                   {"scores", result.questions[i].scores}};
    for (const data::Choice& choice : question.choices) {
      line["tokens"].push_back(choice.text.scored);
      line["bytes"].push_back(choice.bytes);
    }
    lines += line.dump() + "\n";
  }
  return lines;
}

// Before an evaluation that may take long.
void check_items(const std::string& path, const std::vector<NamedPath>& choices) {
  std::error_code ignored;
  const fs::path parent = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
  if (fs::is_directory(path, ignored)) throw_input("--items {} is a folder; name a file", path);
  if (!fs::is_directory(parent, ignored)) throw_input("--items {}: there is no folder {}", path, parent.string());
  for (const NamedPath& file : choices)
    if (fs::equivalent(path, file.path, ignored))
      throw_input("--items {} is the file of questions; the scores would be written over them", path);
}

// A pipe or a device gets the lines; a file, also behind a link, is replaced as a whole.
void write_items(const std::string& path, const std::string& lines) {
  std::error_code ignored;
  // /dev/stdout may lead to a file, in which the results stand already.
  const bool ours = !path.starts_with("/dev/") && !path.starts_with("/proc/");
  if (fs::exists(path, ignored) && !(ours && fs::is_regular_file(path, ignored))) {
    std::fflush(stdout);
    return write_all(open_file(path, O_WRONLY | O_APPEND | O_CLOEXEC, "write the scores to").get(), lines, path);
  }
  write_file_durably(fs::weakly_canonical(path), lines);
}

void run(const Options& options) {
  memory::install_caching_allocator();
  const train::LoadedModel loaded = train::load_model(options.checkpoint, options.weights);
  const Inputs inputs = inputs_of(options, loaded);
  if (!options.items.empty()) check_items(options.items, inputs.choices);
  const int64_t seq_len = options.seq_len > 0 ? options.seq_len : loaded.seq_len;
  if (seq_len > loaded.model->shape().max_seq_len)
    throw_input("--seq-len {} is longer than the model's longest sequence, {}", seq_len,
                loaded.model->shape().max_seq_len);
  const Opened opened = open_all(inputs, loaded);
  const auto alone = comm::Communicator::solo("data");
  for (size_t i = 0; i < inputs.sets.size(); ++i)
    show(options, loaded, inputs.sets[i],
         *train::evaluate(*loaded.model, opened.datasets[i], *alone,
                          {.seq_len = seq_len,
                           .micro_batch_size = loaded.micro_batch_size,
                           .max_tokens = options.tokens,
                           .document_mask = loaded.document_mask,
                           .wants_to_stop = {}}));
  std::string items;
  for (const train::ChoiceSuite& suite : opened.choices) {
    const train::ChoiceEvaluation result = *train::evaluate_choices(
        *loaded.model, suite.questions, *alone, {.micro_batch_size = loaded.micro_batch_size, .wants_to_stop = {}});
    show(options, loaded, suite, result);
    items += item_lines(suite, result);
  }
  if (!options.items.empty()) write_items(options.items, items);
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "eval", "Loss and bits per byte of a checkpoint on held-out text, and its answers to questions");
  const auto options = std::make_shared<Options>();
  command->add_option("CHECKPOINT", options->checkpoint, "A checkpoint, or a run folder (its newest checkpoint)")
      ->required();
  command
      ->add_option("--data", options->data,
                   "A prepared data set, or NAME=FOLDER; repeatable. Without --data and --choices, what the run was "
                   "evaluated on")
      ->type_name("[NAME=]FOLDER")
      ->allow_extra_args(false);
  command
      ->add_option("--choices", options->choices,
                   "Multiple-choice questions, JSON Lines with question, choices and answer; repeatable")
      ->type_name("[NAME=]FILE")
      ->allow_extra_args(false);
  command
      ->add_option("--items", options->items, "Write a line of JSON for each question here: the score of every choice")
      ->type_name("FILE")
      ->check([](const std::string& path) {
        return path.empty() ? std::string("it is empty; name a file") : std::string();
      });
  command->add_option("--tokens", options->tokens, "At most so many tokens of each set; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  command->add_option("--seq-len", options->seq_len, "Tokens a window of text; 0: as in training")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  add_ema(*command, options->weights);
  command->add_flag("--json", options->json, "A line of JSON for each set and file in place of text");
  command->footer(
      "Windows do not overlap and every byte of text counts once, so bits per byte compare across tokenizers.\n"
      "Examples:\n  trireme eval runs/sotu --data data/sotu/eval\n"
      "  trireme eval runs/sotu --choices arc=data/arc-easy.jsonl --items scores.jsonl");
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
