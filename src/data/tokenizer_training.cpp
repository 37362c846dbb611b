#include "data/tokenizer_training.h"

#include <algorithm>

#include "base/error.h"
#include "base/machine.h"
#include "data/bpe_counts.h"
#include "data/bpe_trainer.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEndOfText = "<|endoftext|>";

}  // namespace

TrainedTokenizer train_tokenizer(std::span<const fs::path> files, const TokenizerTraining& options) {
  const auto specials = static_cast<int64_t>(options.specials.size());
  const int64_t least = 256 + specials, most = int64_t{1} << 24;
  TokenizerParts parts{options.pattern, {}, {}, ""};
  for (const std::string& text : options.specials) parts.specials.push_back({text});
  if (!options.specials.empty()) {
    const bool usual = std::count(options.specials.begin(), options.specials.end(), kEndOfText) > 0;
    parts.end_of_text = usual ? kEndOfText : options.specials.front();
  }
  std::vector<std::string> faults;
  if (options.vocab < least || options.vocab > most) {
    faults.push_back(
        fmt::format("vocab = {}: it counts the 256 bytes and {} special tokens, so it is at least {} (and at most {})",
                    options.vocab, specials, least, most));
  }
  if (options.threads < 0 || options.threads > 1024)
    faults.push_back(fmt::format("threads = {}: give 1 to 1024, or 0 for all processors", options.threads));
  if (files.empty()) faults.push_back("no text files were given");
  // A tokenizer of the single bytes alone checks the rest before the text is read.
  for (int byte = 0; byte < 256; ++byte) parts.ranks.emplace_back(1, static_cast<char>(byte));
  try {
    Tokenizer{parts};
  } catch (const InputError& error) {
    faults.insert(faults.end(), error.faults().begin(), error.faults().end());
  }
  if (!faults.empty()) throw InputError(faults);

  const int threads = options.threads > 0 ? options.threads : static_cast<int>(usable_cores());
  const PieceCounts counts = count_pieces(files, Splitter(options.pattern), threads, options.text_field);
  parts.ranks = train_ranks(counts, options.vocab - specials);
  const auto reached = static_cast<int64_t>(parts.ranks.size()) + specials;
  if (reached < options.vocab) {
    throw_input(
        "the text gives {} tokens, specials included, and {} were asked for: no further pair of tokens stands in it "
        "twice; "
        "give more text, or a vocabulary of at most {}",
        reached, options.vocab, reached);
  }
  return {Tokenizer(std::move(parts)), static_cast<int64_t>(files.size()), counts.total(),
          static_cast<int64_t>(counts.counts().size())};
}

}  // namespace trireme::data
