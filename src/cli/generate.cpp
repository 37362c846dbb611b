// `trireme generate`: text from a checkpoint, token by token.
#include <ATen/ATen.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/ema_option.h"
#include "memory/caching_allocator.h"
#include "models/generate.h"
#include "train/inference.h"

namespace trireme::cli {
namespace {

struct Options {
  std::string checkpoint, prompt, prompt_file;
  models::SamplingOptions sampling;
  int64_t seed = 0;
  train::Weights weights = train::Weights::trained;
};

// Bytes of a token go out at once, but never half a character: a terminal would show it as broken.
class Utf8Stream {
 public:
  void add(std::string_view bytes) {
    pending_ += bytes;
    size_t whole = pending_.size();
    // A character that has begun within the last three bytes may still be going on.
    for (size_t back = 1; back <= std::min<size_t>(3, pending_.size()); ++back) {
      const auto byte = static_cast<unsigned char>(pending_[pending_.size() - back]);
      if (byte < 0x80) break;
      if (byte >= 0xC0) {
        const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
        if (length > back) whole = pending_.size() - back;
        break;
      }
    }
    put(whole);
  }
  void finish() { put(pending_.size()); }

 private:
  void put(size_t bytes) {
    std::fwrite(pending_.data(), 1, bytes, stdout);
    std::fflush(stdout);
    pending_.erase(0, bytes);
  }
  std::string pending_;
};

std::string read_prompt(const std::string& path) {
  // What is no file (a device, a pipe that nobody closes) may have no end.
  constexpr uintmax_t kMostBytes = uintmax_t{16} << 20;
  if (!std::filesystem::is_regular_file(path) && std::filesystem::exists(path))
    throw_input("--prompt-file {} is not a file", path);
  std::error_code ignored;
  if (const uintmax_t bytes = std::filesystem::file_size(path, ignored); !ignored && bytes > kMostBytes)
    throw_input("--prompt-file {} has {} bytes; a prompt has at most {}", path, bytes, kMostBytes);
  return read_file(path);
}

void run(Options options) {
  std::vector<std::string> faults;
  const models::SamplingOptions& sampling = options.sampling;
  if (sampling.max_tokens < 1)
    faults.push_back(fmt::format("--max-tokens {} has to be at least 1", sampling.max_tokens));
  if (!(sampling.temperature >= 0))
    faults.push_back(fmt::format("--temperature {} has to be 0 or more", sampling.temperature));
  if (sampling.top_k < 0) faults.push_back(fmt::format("--top-k {} has to be 0 (all) or more", sampling.top_k));
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    faults.push_back(fmt::format("--top-p {} has to be in (0, 1]", sampling.top_p));
  if (!faults.empty()) throw InputError(faults);
  options.sampling.seed = static_cast<uint64_t>(options.seed);

  memory::install_caching_allocator();
  const train::LoadedModel loaded = train::load_model(options.checkpoint, options.weights);
  const std::string prompt = options.prompt_file.empty() ? options.prompt : read_prompt(options.prompt_file);
  // In training every document follows an end of text, so that is what a beginning looks like to the model.
  std::vector<int32_t> tokens = {loaded.tokenizer.end_of_text()};
  loaded.tokenizer.encode(prompt, tokens);
  options.sampling.end_of_text = loaded.tokenizer.end_of_text();
  options.sampling.vocab = loaded.tokenizer.vocab_size();

  models::check_prompt(*loaded.model, static_cast<int64_t>(tokens.size()));
  Utf8Stream out;
  out.add(prompt);
  const auto made = models::generate(*loaded.model, tokens, options.sampling, [&](int32_t token) {
    out.add(loaded.tokenizer.token_bytes(token));
    return true;
  });
  out.finish();
  std::fputc('\n', stdout);
  std::fflush(stdout);  // before a notice on the other stream
  const auto room = loaded.model->shape().max_seq_len - static_cast<int64_t>(tokens.size());
  const bool ended = !made.empty() && made.back() == loaded.tokenizer.end_of_text();
  if (!ended && options.sampling.max_tokens > static_cast<int64_t>(made.size()) &&
      static_cast<int64_t>(made.size()) >= room)
    std::fprintf(stderr, "trireme: stopped after %zu tokens, at the model's longest sequence of %ld\n", made.size(),
                 static_cast<long>(loaded.model->shape().max_seq_len));
  if (::isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "(%zu tokens, %s)\n", made.size(), loaded.checkpoint.c_str());
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Write text with a trained model");
  const auto options = std::make_shared<Options>();
  command->add_option("CHECKPOINT", options->checkpoint, "A checkpoint, or a run folder (its newest checkpoint)")
      ->required();
  auto* prompt =
      command->add_option("--prompt", options->prompt, "Text to go on from; without it, the beginning of a text");
  command->add_option("--prompt-file", options->prompt_file, "The prompt from a file")->excludes(prompt);
  command->add_option("--max-tokens", options->sampling.max_tokens, "At most so many new tokens")
      ->capture_default_str();
  command
      ->add_option("--temperature", options->sampling.temperature,
                   "0: always the most likely token; 1: as the model says; more: wilder")
      ->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "Only the K most likely tokens; 0: all")
      ->capture_default_str();
  command->add_option("--top-p", options->sampling.top_p, "Only the likely tokens that together reach this probability")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "The same seed writes the same text")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  add_ema(*command, options->weights);
  command->footer(
      "Example:\n  trireme generate runs/sotu --prompt \"My fellow Americans,\" --max-tokens 200 --temperature 0.8");
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
