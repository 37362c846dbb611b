// `trireme data tokenizer`: trains a tokenizer on text files.
#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/tokenizer_folder.h"
#include "data/input_files.h"
#include "data/tokenizer_training.h"

namespace trireme::cli {
namespace {

struct Options {
  std::vector<std::string> inputs;
  std::string out;
  bool force = false;
  data::TokenizerTraining training;
};

void run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto files = data::list_text_files(options.inputs);
  check_tokenizer_folder(options.out, options.training.vocab, options.force);
  const auto trained = data::train_tokenizer(files, options.training);
  const std::string out = save_tokenizer(options.out, trained.tokenizer, options.force);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("tokenizer  {} tokens from {} files, {} pieces, {} distinct ({:.1f} s)\n", trained.tokenizer.vocab_size(),
             trained.files, trained.pieces, trained.distinct_pieces, seconds.count());
  fmt::print("hash       {}\n", trained.tokenizer.hash());
  fmt::print("written to {}\n", out);
}

}  // namespace

void add_tokenizer(CLI::App& data_group) {
  const auto options = std::make_shared<Options>();
  auto& training = options->training;
  CLI::App* command = data_group.add_subcommand("tokenizer", "Train a byte-level BPE tokenizer on text files");
  command
      ->add_option("text", options->inputs,
                   "Files, folders (all files below), or quoted patterns such as 'texts/*.txt'")
      ->required();
  command->add_option("--out", options->out, "Folder that gets tokenizer.tiktoken and manifest.json")->required();
  command->add_option("--vocab", training.vocab, "Number of tokens, special tokens included")->capture_default_str();
  command
      ->add_option("--special", training.specials, "Special tokens; <|endoftext|>, or else the first, ends a document")
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      ->add_option("--pattern", training.pattern,
                   "How text is cut into pieces: cl100k, gpt2, o200k, or a regular expression")
      ->capture_default_str();
  command->add_option("--text-field", training.text_field, "Field of the lines of .jsonl files that holds the text")
      ->capture_default_str();
  command
      ->add_option("--threads", training.threads,
                   "Threads; 0: one for each processor. The result does not depend on it")
      ->capture_default_str();
  command->add_flag("--force", options->force, "Overwrite another tokenizer in --out");
  command->footer("Example:\n  trireme data tokenizer texts/ --vocab 4096 --out data/tokenizer");
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
