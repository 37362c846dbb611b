#include "data/prepare.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/dataset.h"
#include "data/prepare_inputs.h"
#include "data/prepare_journal.h"
#include "data/prepare_pipeline.h"
#include "data/tokenizer.h"
#include "data/tokenizer_file.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr int kMostThreads = 1024;

bool has_eval_split(const PrepareOptions& options) {
  return !options.eval_list.empty() || !options.eval_glob.empty() || options.eval_hash_percent > 0;
}

void check_options(const PrepareOptions& options) {
  std::vector<std::string> faults;
  if (options.out.empty()) faults.push_back("--out is missing: the folder to write to");
  if (options.threads < 0 || options.threads > kMostThreads)
    faults.push_back(
        fmt::format("--threads {} must be 1 to {} (0: all of the machine's)", options.threads, kMostThreads));
  std::error_code error;
  for (const std::string& input : options.inputs) {
    if (!options.out.empty() && fs::is_directory(input, error) && fs::equivalent(input, options.out, error))
      faults.push_back(fmt::format("--out {} is an input: its shards would be text of the next call", input));
  }
  if (options.shard_tokens < 1)
    faults.push_back(fmt::format("--shard-tokens {} must be at least 1", options.shard_tokens));
  if (!(options.eval_hash_percent >= 0 && options.eval_hash_percent < 100)) {
    faults.push_back(fmt::format("--eval-hash {} must be at least 0 and below 100", options.eval_hash_percent));
  }
  if (options.eval_hash_percent > 0 && (!options.eval_list.empty() || !options.eval_glob.empty())) {
    faults.push_back("--eval-hash cannot be used with --eval-list or --eval-glob: choose one way to hold text out");
  }
  if (options.document_separator.find_first_of("\r\n") != std::string::npos) {
    faults.push_back("--document-separator must be one line, without its end");
  }
  if (!faults.empty()) throw InputError(faults);
}

/// One preparation at a time in a folder. The lock goes with the process that holds it.
FileDescriptor lock_folder(const fs::path& folder) {
  FileDescriptor file = open_file(folder, O_RDONLY | O_DIRECTORY, "open folder");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      throw_input("another preparation writes to {} now; wait for its end, or choose another --out", folder.string());
    throw_errno("lock folder", folder.string(), errno);
  }
  return file;
}

/// The options that change the output. The threads do not, and the held-out files are in the digest of the names.
nlohmann::json settings_of(const PrepareOptions& options, const Tokenizer& tokenizer) {
  nlohmann::json settings = {{"tokenizer", tokenizer.hash()},
                             {"invalid-utf8", name_of(options.invalid_utf8)},
                             {"document-separator", options.document_separator},
                             {"eval-hash", options.eval_hash_percent},
                             {"held-out split", has_eval_split(options)},
                             {"shard-tokens", options.shard_tokens}};
  if (options.text_field != PrepareOptions().text_field) settings["text-field"] = options.text_field;
  return settings;
}

/// Removes what a preparation has written, and nothing else. The manifests go first: without one there is no data set.
/// A tokenizer beside shards is a copy that the preparation made, unless it is `tokenizer`, which the user gave.
void clear_output(const fs::path& out, const fs::path& tokenizer) {
  std::vector<fs::path> copies;
  for (const char* split : {"", "train", "eval"}) {
    const fs::path folder = out / split;
    const fs::path copy = folder / "tokenizer";
    std::error_code error;
    if (fs::exists(folder / "manifest.json") && !fs::equivalent(copy, tokenizer, error)) copies.push_back(copy);
    fs::remove(folder / "manifest.json");
  }
  fs::remove(out / "prepare.json");
  for (const char* split : {"", "train", "eval"}) {
    const fs::path folder = out / split;
    if (!fs::is_directory(folder)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("shard-") && (name.ends_with(".tokens") || name.ends_with(".tokens.tmp")))
        fs::remove(entry.path());
    }
  }
  for (const fs::path& copy : copies) {
    for (const char* file : {"manifest.json", "tokenizer.tiktoken"}) fs::remove(copy / file);
  }
}

/// A manifest.json of something else (a tokenizer's folder) is not ours to replace, whatever is asked for.
void refuse_foreign_manifests(const fs::path& out) {
  for (const char* split : {"", "train", "eval"}) {
    if (is_tokenizer_manifest(out / split / "manifest.json"))
      throw_input("{} holds a tokenizer; choose another --out", (out / split).string());
  }
}

bool has_output(const fs::path& out) {
  for (const char* split : {"", "train", "eval"}) {
    if (fs::exists(out / split / "manifest.json")) return true;
  }
  return false;
}

std::string differences(const Journal& journal, const nlohmann::json& settings, bool inputs_differ) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  for (const auto& [name, now] : settings.items()) {
    const nlohmann::json before = journal.settings.value(name, nlohmann::json());
    if (before != now) add(fmt::format("{} was {} and is {}", name, before.dump(), now.dump()));
  }
  for (const auto& [name, before] : journal.settings.items()) {
    if (!settings.contains(name)) add(fmt::format("{} was {} and is the default", name, before.dump()));
  }
  if (inputs_differ) add("the input files changed");
  return text;
}

/// One preparation, from what lies in the folder to finished splits.
class Preparation {
 public:
  explicit Preparation(const PrepareOptions& options)
      : options_(options),
        tokenizer_(Tokenizer::load(options.tokenizer)),
        inputs_(gather_inputs(options)),
        settings_(settings_of(options, tokenizer_)) {}

  PrepareReport run() {
    const auto start = std::chrono::steady_clock::now();
    if (!is_up_to_date()) {
      find_where_to_continue();
      run_splits();
      finish();
    }
    PrepareReport report = report_;
    report.input_files = static_cast<int64_t>(inputs_.files.size());
    report.input_bytes = inputs_.bytes;
    report.threads = prepare_threads(options_);
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (const SplitProgress& split : journal_.splits) {
      report.splits.push_back(
          {split.name, options_.out / split.folder, split.counts, static_cast<int64_t>(split.shards.size())});
    }
    return report;
  }

 private:
  bool is_up_to_date() {
    std::optional<Journal> journal = read_journal(options_.out);
    if (!journal) {
      if (has_output(options_.out) && !options_.force) {
        throw_input("{} holds prepared data without a usable prepare.json; --force replaces it", options_.out.string());
      }
      return false;
    }
    journal_ = std::move(*journal);
    found_journal_ = true;
    if (!journal_.complete) return false;
    bool inputs_differ = journal_.listing_digest != inputs_.listing_digest;
    if (inputs_differ && journal_.names_digest == inputs_.names_digest &&
        content_is_unchanged(journal_, inputs_, options_.out)) {
      inputs_differ = false;  // touched or copied, but the same
      journal_.listing_digest = inputs_.listing_digest;
      write_journal(options_.out, journal_);
    }
    const std::string different = differences(journal_, settings_, inputs_differ);
    if (different.empty()) {
      if (outputs_open()) return report_.up_to_date = true;
      return false;
    }
    if (!options_.force) {
      throw_input("{} holds finished data of another preparation: {}; --force replaces it, or choose another --out",
                  options_.out.string(), different);
    }
    found_journal_ = false;
    return false;
  }

  bool outputs_open() {
    try {
      for (const SplitProgress& split : journal_.splits) {
        const auto dataset = Dataset::open(options_.out / split.folder);
        // Who asks for more than a look suspects the data: then every byte is read.
        if (!options_.force) continue;
        if (std::vector<std::string> faults = dataset->verify(); !faults.empty()) throw InputError(std::move(faults));
      }
      return true;
    } catch (const InputError& error) {
      if (!options_.force) throw InputError(fmt::format("{}\n--force prepares the data again", error.what()));
      log::warning("prepared again: {}", error.what());
      found_journal_ = false;
      return false;
    }
  }

  /// Leaves in journal_ and known_ what is finished.
  void find_where_to_continue() {
    if (found_journal_ && !journal_.complete) {
      const std::string different = differences(journal_, settings_, journal_.listing_digest != inputs_.listing_digest);
      if (different.empty() && recall()) return;
      if (!different.empty())
        log::info("an unfinished preparation in {} is started over: {}", options_.out.string(), different);
    }
    known_.clear();
    clear_output(options_.out, options_.tokenizer);
    journal_ = {.complete = false,
                .settings = settings_,
                .names_digest = inputs_.names_digest,
                .listing_digest = inputs_.listing_digest,
                .splits = {}};
    // The held-out split first: what it has is left out of the training split.
    if (has_eval_split(options_)) {
      add_split("eval", "eval");
      add_split("train", "train");
    } else {
      add_split("train", "");
    }
    for (const SplitProgress& split : journal_.splits)
      refuse_other_tokenizer(options_.out / split.folder / "tokenizer");
    for (const SplitProgress& split : journal_.splits) make_directories(options_.out / split.folder);
    write_journal(options_.out, journal_);
  }

  /// Where the copy will go, a tokenizer of the user's may lie.
  void refuse_other_tokenizer(const fs::path& folder) const {
    if (!fs::exists(folder / "manifest.json")) return;
    const std::string hash = Tokenizer::load(folder).hash();
    if (hash == tokenizer_.hash()) return;
    throw_input(
        "{} holds another tokenizer ({}) than --tokenizer {} ({}), whose copy would go there; choose another --out",
        folder.string(), hash, options_.tokenizer.string(), tokenizer_.hash());
  }

  void add_split(const char* name, const char* folder) {
    SplitProgress& split = journal_.splits.emplace_back();
    split.name = name;
    split.folder = folder;
  }

  bool recall() {
    try {
      for (SplitProgress& split : journal_.splits) {
        pipeline(split).remember_shards();
        report_.kept_shards += static_cast<int64_t>(split.shards.size());
      }
      return true;
    } catch (const InputError& error) {
      log::warning("a finished shard cannot be used, so the preparation is started over: {}", error.what());
      report_.kept_shards = 0;
      return false;
    }
  }

  SplitPipeline pipeline(SplitProgress& split) {
    return {options_, inputs_, tokenizer_, known_, split, [this] { write_journal(options_.out, journal_); }};
  }

  void run_splits() {
    for (SplitProgress& split : journal_.splits) {
      if (!split.complete) pipeline(split).run();
    }
  }

  void finish() {
    std::vector<std::string> faults;
    for (const SplitProgress& split : journal_.splits) {
      const PrepareCounts& counts = split.counts;
      if (counts.documents > 0) continue;
      std::string fault = fmt::format(
          "the {} split has no document: of {} input files ({} bytes), {} documents are empty, {} duplicates, "
          "{} held out, {} not UTF-8 and dropped",
          split.name, inputs_.files.size(), inputs_.bytes, counts.empty, counts.duplicates, counts.held_out,
          counts.invalid_dropped);
      if (options_.eval_hash_percent > 0) {
        int64_t documents = 0;
        for (const SplitProgress& other : journal_.splits) documents += other.counts.documents;
        fault += fmt::format(
            "; --eval-hash {} took none of {} documents for this split: give another share, or name "
            "files by --eval-glob",
            options_.eval_hash_percent, documents);
      }
      faults.push_back(std::move(fault));
    }
    if (!faults.empty()) throw InputError(faults);
    for (const SplitProgress& split : journal_.splits) {
      const fs::path folder = options_.out / split.folder;
      tokenizer_.save(folder / "tokenizer");
      write_manifest(folder, {.tokenizer_hash = tokenizer_.hash(),
                              .vocab_size = tokenizer_.vocab_size(),
                              .end_of_text = tokenizer_.end_of_text(),
                              .id_bytes = id_bytes_for(tokenizer_.vocab_size()),
                              .shards = split.shards});
    }
    journal_.complete = true;
    write_journal(options_.out, journal_);
  }

  const PrepareOptions& options_;
  Tokenizer tokenizer_;
  Inputs inputs_;
  nlohmann::json settings_;
  Journal journal_;
  bool found_journal_ = false;
  KnownTexts known_;
  PrepareReport report_;
};

}  // namespace

PrepareReport prepare(const PrepareOptions& options) {
  check_options(options);
  refuse_foreign_manifests(options.out);
  make_directories(options.out);
  const FileDescriptor lock = lock_folder(options.out);
  return Preparation(options).run();
}

std::string to_text(const PrepareReport& report) {
  std::string text;
  if (report.up_to_date)
    text += "Up to date: the inputs and settings are those of the finished data; nothing was done.\n";
  text += fmt::format("{:<6} {:>10} {:>13} {:>14} {:>11} {:>10} {:>8} {:>8} {:>8} {:>7}\n", "split", "documents",
                      "tokens", "text bytes", "bytes/token", "duplicate", "held out", "empty", "not UTF8", "shards");
  for (const PrepareReport::Split& split : report.splits) {
    const PrepareCounts& counts = split.counts;
    text +=
        fmt::format("{:<6} {:>10} {:>13} {:>14} {:>11.3f} {:>10} {:>8} {:>8} {:>8} {:>7}\n", split.name,
                    counts.documents, counts.tokens, counts.text_bytes,
                    static_cast<double>(counts.text_bytes) / static_cast<double>(std::max<int64_t>(counts.tokens, 1)),
                    counts.duplicates, counts.held_out, counts.empty, counts.invalid, split.shards);
  }
  for (const PrepareReport::Split& split : report.splits) {
    text += fmt::format("{}: {}", split.name, split.folder.string());
    if (split.counts.invalid_dropped > 0)
      text += fmt::format(" ({} documents that are not UTF-8 were left out)", split.counts.invalid_dropped);
    text += "\n";
  }
  text += fmt::format("{} files, {:.1f} MB", report.input_files, static_cast<double>(report.input_bytes) / 1e6);
  if (!report.up_to_date) {
    text += fmt::format(" in {:.2f} s with {} threads: {:.1f} MB/s", report.seconds, report.threads,
                        static_cast<double>(report.input_bytes) / 1e6 / std::max(report.seconds, 1e-9));
    if (report.kept_shards > 0) text += fmt::format("; {} shards were finished before", report.kept_shards);
  }
  return text + "\n";
}

}  // namespace trireme::data
