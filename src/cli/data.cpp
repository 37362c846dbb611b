// `trireme data`: tokenizer, import-tokenizer, prepare, inspect, verify.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "data/dataset.h"
#include "data/inspect.h"
#include "data/prepare.h"

namespace trireme::cli {

void add_tokenizer(CLI::App& data_group);         // tokenizer.cpp
void add_import_tokenizer(CLI::App& data_group);  // import_tokenizer.cpp

namespace {

void add_prepare(CLI::App& group) {
  struct Options {
    data::PrepareOptions prepare;
    std::string invalid_utf8 = "keep";
  };
  const auto options = std::make_shared<Options>();
  data::PrepareOptions& prepare = options->prepare;
  CLI::App* command = group.add_subcommand("prepare", "Turn text files into token shards, once, before training");
  command
      ->add_option("inputs", prepare.inputs,
                   "Text files, folders (everything below; hidden files are left out), or patterns; ** crosses folders")
      ->required();
  command->add_option("--tokenizer", prepare.tokenizer, "Folder of the tokenizer (trireme data tokenizer)")->required();
  command->add_option("--out", prepare.out, "Folder to write: OUT, or OUT/train and OUT/eval when text is held out")
      ->required();
  command
      ->add_option("--invalid-utf8", options->invalid_utf8,
                   "Documents that are not UTF-8: keep (as they are), replace (broken bytes by U+FFFD), drop, error")
      ->capture_default_str();
  command
      ->add_option("--document-separator", prepare.document_separator,
                   "Documents of a file are separated by lines equal to this (default: a file is one document)")
      ->check(CLI::Validator(
          [](std::string& word) { return word.empty() ? "an empty line cannot separate documents" : ""; }, ""));
  command
      ->add_option("--text-field", prepare.text_field,
                   "Field of the lines of .jsonl files that holds the text of a document")
      ->capture_default_str();
  command->add_option("--eval-list", prepare.eval_list, "Hold out the files named in this file, a path a line");
  command->add_option("--eval-glob", prepare.eval_glob, "Hold out the files that match this pattern; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--eval-hash", prepare.eval_hash_percent,
                      "Hold out this percentage of the documents, chosen by a hash of their text");
  command->add_option("--threads", prepare.threads, "Threads (default: all of the machine's)");
  command->add_option("--shard-tokens", prepare.shard_tokens, "Tokens at which a shard is closed")
      ->capture_default_str();
  command->add_flag("--force", prepare.force,
                    "Replace finished output that is damaged, or whose inputs or settings differ");
  command->footer(
      "Example:\n"
      "  trireme data prepare --tokenizer tokenizer --out data/books --eval-glob 'z*.txt' texts/\n"
      "\n"
      "A preparation that was stopped continues when it is called again; one that is finished is not repeated.");
  command->callback([options] {
    options->prepare.invalid_utf8 = data::invalid_utf8_from_name(options->invalid_utf8);
    options->prepare.on_shard = [](const std::string& split, const data::ShardEntry& shard) {
      fmt::print("{:<5} {}: {} documents, {} tokens\n", split, shard.file, shard.documents, shard.tokens);
      std::fflush(stdout);
    };
    fmt::print("{}", data::to_text(data::prepare(options->prepare)));
  });
}

void add_inspect_data(CLI::App& group) {
  struct Options {
    std::string folder;
    int64_t document = -1;
    int64_t sample = -1;
    int64_t seq_len = 1024;
    int64_t rows = 20;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = group.add_subcommand("inspect", "Show what a prepared data set holds");
  command->add_option("folder", options->folder, "Prepared folder, with its manifest.json")->required();
  CLI::Option* document = command->add_option("--document", options->document, "Show the text of document N");
  CLI::Option* sample = command->add_option("--sample", options->sample, "Show the text of training sample K");
  command->add_option("--seq-len", options->seq_len, "Tokens of a sample")->capture_default_str();
  command->add_option("--rows", options->rows, "Documents to list")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  command->callback([options, document, sample] {
    const auto dataset = data::Dataset::open(options->folder);
    if (document->count() > 0) fmt::print("{}", data::describe_document(*dataset, options->document));
    if (sample->count() > 0) fmt::print("{}", data::describe_sample(*dataset, options->sample, options->seq_len));
    if (document->count() + sample->count() == 0) fmt::print("{}", data::describe(*dataset, options->rows));
  });
}

void add_verify(CLI::App& group) {
  const auto folder = std::make_shared<std::string>();
  CLI::App* command = group.add_subcommand(
      "verify", "Read everything and check it; damage is named by shard and document (exit code 2)");
  command->add_option("folder", *folder, "Prepared folder, with its manifest.json")->required();
  command->callback([folder] {
    const auto dataset = data::Dataset::open(*folder);
    const std::vector<std::string> faults = dataset->verify();
    if (!faults.empty()) throw InputError(faults);
    fmt::print("{} is sound: {} shards, {} documents, {} tokens\n", *folder, dataset->manifest().shards.size(),
               dataset->document_count(), dataset->token_count());
  });
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* group = app.add_subcommand("data", "Prepare text for training: tokenizer, prepare, inspect, verify");
  group->require_subcommand(1);
  add_tokenizer(*group);
  add_import_tokenizer(*group);
  add_prepare(*group);
  add_inspect_data(*group);
  add_verify(*group);
}

}  // namespace trireme::cli
