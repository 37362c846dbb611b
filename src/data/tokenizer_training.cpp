#include "data/tokenizer_training.h"

#include <glob.h>

#include <algorithm>
#include <set>
#include <thread>

#include "base/error.h"
#include "data/bpe_counts.h"
#include "data/bpe_trainer.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEndOfText = "<|endoftext|>";

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// Adds a file, or all files below a folder; false when there are none.
bool add_path(const fs::path& path, std::set<fs::path>& files) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (!fs::exists(path, error)) return false;
    files.insert(path.lexically_normal());
    return true;
  }
  const size_t before = files.size();
  bool any = false;
  for (fs::recursive_directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    if (hidden(at->path())) {
      if (at->is_directory(error)) at.disable_recursion_pending();
      continue;
    }
    if (!at->is_regular_file(error)) continue;
    files.insert(at->path().lexically_normal());
    any = true;
  }
  if (error) throw_errno("read folder", path.string(), error.value());
  return any || files.size() > before;
}

std::vector<fs::path> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<fs::path> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

}  // namespace

std::vector<fs::path> list_text_files(std::span<const std::string> inputs) {
  std::set<fs::path> files;
  std::vector<std::string> faults;
  for (const std::string& input : inputs) {
    try {
      std::error_code ignored;
      if (fs::exists(input, ignored)) {
        if (!add_path(input, files)) faults.push_back(fmt::format("{}: there are no files in this folder", input));
      } else if (input.find_first_of("*?[") != std::string::npos) {
        bool any = false;
        for (const fs::path& path : matches(input)) any = add_path(path, files) || any;
        if (!any) faults.push_back(fmt::format("{}: matches no file", input));
      } else {
        faults.push_back(fmt::format("{}: there is no such file or folder", input));
      }
    } catch (const InputError& error) {
      faults.push_back(error.what());
    }
  }
  if (inputs.empty()) faults.push_back("no text was given: name files, folders or patterns such as 'texts/*.txt'");
  if (!faults.empty()) throw InputError(faults);
  return {files.begin(), files.end()};
}

TrainedTokenizer train_tokenizer(std::span<const fs::path> files, const TokenizerTraining& options) {
  const auto specials = static_cast<int64_t>(options.specials.size());
  const int64_t least = 256 + specials, most = int64_t{1} << 24;
  TokenizerParts parts{options.pattern, {}, options.specials, ""};
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
  if (options.threads < 0)
    faults.push_back(fmt::format("threads = {}: give 1 or more, or 0 for all processors", options.threads));
  if (files.empty()) faults.push_back("no text files were given");
  // A tokenizer of the single bytes alone checks the rest before the text is read.
  for (int byte = 0; byte < 256; ++byte) parts.ranks.emplace_back(1, static_cast<char>(byte));
  try {
    Tokenizer{parts};
  } catch (const InputError& error) {
    faults.insert(faults.end(), error.faults().begin(), error.faults().end());
  }
  if (!faults.empty()) throw InputError(faults);

  const int threads =
      options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const PieceCounts counts = count_pieces(files, Splitter(options.pattern), threads);
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
