// `trireme eval`: loss and bits per byte of a checkpoint on prepared text.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "comm/communicator.h"
#include "memory/caching_allocator.h"
#include "train/evaluate.h"
#include "train/inference.h"

namespace trireme::cli {
namespace {

struct Options {
  std::string checkpoint, data;
  int64_t tokens = 0, seq_len = 0;
  bool json = false;
};

void run(const Options& options) {
  memory::install_caching_allocator();
  const train::LoadedModel loaded = train::load_model(options.checkpoint);
  const std::filesystem::path folder = options.data.empty() ? loaded.eval_path : std::filesystem::path(options.data);
  if (folder.empty())
    throw_input("{} was trained without held-out text (data.eval_path); name a prepared data set with --data",
                loaded.checkpoint.string());
  const auto dataset = data::Dataset::open(folder);
  if (dataset->tokenizer_hash() != loaded.tokenizer.hash())
    throw_input("{} was prepared with the tokenizer {}, but {} was trained with {}; prepare the text with {}",
                folder.string(), dataset->tokenizer_hash(), loaded.checkpoint.string(), loaded.tokenizer.hash(),
                "`trireme data prepare --tokenizer RUN/tokenizer`");
  const int64_t seq_len = options.seq_len > 0 ? options.seq_len : loaded.seq_len;
  if (seq_len > loaded.model->shape().max_seq_len)
    throw_input("--seq-len {} is longer than the model's longest sequence, {}", seq_len,
                loaded.model->shape().max_seq_len);
  const auto alone = comm::Communicator::solo("data");
  const train::Evaluation result = *train::evaluate(*loaded.model, dataset, *alone,
                                                    {.seq_len = seq_len,
                                                     .micro_batch_size = loaded.micro_batch_size,
                                                     .max_tokens = options.tokens,
                                                     .document_mask = loaded.document_mask,
                                                     .wants_to_stop = {}});
  if (options.json) {
    const nlohmann::ordered_json line = {{"checkpoint", loaded.checkpoint.string()},
                                         {"step", loaded.step},
                                         {"data", folder.string()},
                                         {"eval_loss", result.loss},
                                         {"eval_bits_per_byte", result.bits_per_byte},
                                         {"eval_tokens", result.tokens},
                                         {"eval_bytes", result.bytes}};
    std::printf("%s\n", line.dump().c_str());
    return;
  }
  std::printf("%s on %s\n", loaded.checkpoint.c_str(), folder.c_str());
  std::printf("  loss            %.4f nats a token, %ld tokens\n", result.loss, static_cast<long>(result.tokens));
  std::printf("  bits per byte   %.4f, %ld bytes of text\n", result.bits_per_byte, static_cast<long>(result.bytes));
  std::printf("  time            %.1f s\n", result.seconds);
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "Loss and bits per byte of a checkpoint on held-out text");
  const auto options = std::make_shared<Options>();
  command->add_option("CHECKPOINT", options->checkpoint, "A checkpoint, or a run folder (its newest checkpoint)")
      ->required();
  command->add_option("--data", options->data, "A prepared data set; without it, the run's data.eval_path");
  command->add_option("--tokens", options->tokens, "At most so many tokens; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  command->add_option("--seq-len", options->seq_len, "Tokens a window; 0: as in training")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object in place of text");
  command->footer(
      "Windows do not overlap and every byte of text counts once, so bits per byte compare across tokenizers.\n"
      "Example:\n  trireme eval runs/sotu --data data/sotu/eval");
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
