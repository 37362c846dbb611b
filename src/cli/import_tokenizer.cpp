// `trireme data import-tokenizer`: a tiktoken rank file becomes a tokenizer's folder.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/tokenizer_folder.h"
#include "data/tokenizer_file.h"

namespace trireme::cli {
namespace {

struct Options {
  std::string file;
  std::string out;
  std::string pattern;
  std::vector<std::string> specials;
  bool force = false;
};

/// `TEXT` or `TEXT=ID`; the text itself may hold a `=`.
data::SpecialToken parse_special(const std::string& word) {
  const size_t sign = word.rfind('=');
  const std::string digits = sign == std::string::npos ? "" : word.substr(sign + 1);
  if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos) return {word};
  return {word.substr(0, sign), std::stoll(digits)};
}

void run(const Options& options) {
  data::TokenizerParts parts;
  if (options.pattern.empty() && options.specials.empty()) {
    parts = data::read_encoding(options.file);
  } else {
    if (options.pattern.empty() || options.specials.empty())
      throw_input("--pattern and --special go together: how text is cut, and what ends a document");
    std::vector<data::SpecialToken> specials;
    for (const std::string& word : options.specials) specials.push_back(parse_special(word));
    parts = data::read_rank_file(options.file, options.pattern, std::move(specials));
  }
  const data::Tokenizer tokenizer(std::move(parts));
  check_tokenizer_folder(options.out, tokenizer.vocab_size(), options.force);
  const std::string out = save_tokenizer(options.out, tokenizer, options.force);
  fmt::print("tokenizer  {} tokens, {} of them special\n", tokenizer.vocab_size(), tokenizer.parts().specials.size());
  fmt::print("hash       {}\n", tokenizer.hash());
  fmt::print("written to {}\n", out);
}

}  // namespace

void add_import_tokenizer(CLI::App& data_group) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      data_group.add_subcommand("import-tokenizer", "Make a tokenizer of a tiktoken rank file (lines `BASE64 RANK`)");
  command->add_option("FILE", options->file, "r50k_base (GPT-2), p50k_base, cl100k_base (GPT-4), o200k_base (GPT-4o)")
      ->required();
  command->add_option("--out", options->out, "Folder that gets tokenizer.tiktoken and manifest.json")->required();
  command->add_option("--pattern", options->pattern,
                      "For any other file: cl100k, gpt2, o200k, or a regular expression that cuts text into pieces");
  command
      ->add_option("--special", options->specials,
                   "For any other file: special tokens, as TEXT or TEXT=ID; the first ends a document")
      ->allow_extra_args(false);
  command->add_flag("--force", options->force, "Overwrite another tokenizer in --out");
  command->footer("Example:\n  trireme data import-tokenizer r50k_base.tiktoken --out data/gpt2-tokenizer");
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
