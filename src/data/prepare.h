// Preparation: text files to token shards (see dataset.h), once, before training.
//
// Documents come in the order of their paths and are tokenized in parallel; the output does not depend on the number of
// threads. A run that was killed continues with the same call: shards that were finished are kept (prepare.json records
// them). A call on finished output whose inputs did not change does nothing.
//
// Left out, and counted: documents of nothing but white space; exact duplicates (XXH3-128, then a comparison of the
// bytes); documents of the training split that the held-out split also has; with InvalidUtf8::drop, documents that are
// not UTF-8.
//
// Folders: OUT, or with a held-out split OUT/train and OUT/eval; each self-contained, with a copy of the tokenizer.
// Memory: one shard, a few MiB of text a thread, and about 100 bytes a document.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/manifest.h"
#include "data/prepare_text.h"

namespace trireme::data {

struct PrepareOptions {
  std::filesystem::path tokenizer;  ///< folder of a tokenizer
  std::filesystem::path out;
  std::vector<std::string>
      inputs;  ///< files, folders (all files below, hidden ones left out), globs (`**` crosses folders)
  InvalidUtf8 invalid_utf8 = InvalidUtf8::keep;
  std::string
      document_separator;  ///< documents of a file are separated by lines equal to this; empty: a file is a document
  std::string text_field = "text";  ///< of the lines of .jsonl files, each of which is a document

  // The held-out split, one of:
  std::filesystem::path
      eval_list;  ///< a file with a path a line, as given, relative to an input folder, or the file's name
  std::vector<std::string> eval_glob;  ///< patterns over those paths or file names
  double eval_hash_percent = 0;        ///< share of the documents, chosen by a hash of their text

  int threads = 0;                          ///< 0: as many as the machine has
  int64_t shard_tokens = int64_t{1} << 26;  ///< a shard is closed by the document that reaches this size
  bool force = false;                       ///< replace finished output whose inputs or settings differ
  /// Called after each shard was written and recorded. What it throws ends the preparation, which can be continued.
  std::function<void(const std::string& split, const ShardEntry&)> on_shard;
};

/// Of one split. `documents` and the sizes are what was kept.
struct PrepareCounts {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;
  int64_t duplicates = 0;
  int64_t held_out = 0;  ///< of the training split: documents that the held-out split has too
  int64_t empty = 0;
  int64_t invalid = 0;          ///< documents that were not UTF-8
  int64_t invalid_dropped = 0;  ///< those of them that were left out
};

struct PrepareReport {
  struct Split {
    std::string name;  ///< train or eval
    std::filesystem::path folder;
    PrepareCounts counts;
    int64_t shards = 0;
  };
  std::vector<Split> splits;  ///< eval first, when there is one
  int64_t input_files = 0;
  int64_t input_bytes = 0;
  int64_t kept_shards = 0;  ///< found finished from an earlier call
  bool up_to_date = false;  ///< nothing had to be done
  double seconds = 0;
  int threads = 0;
};

/// Throws InputError: nothing to read, a held-out split that is empty or takes all, bad UTF-8 when that is an error,
/// output of other inputs or settings without `force`, another preparation at work in `out`.
PrepareReport prepare(const PrepareOptions& options);

/// The report as a table for a person.
std::string to_text(const PrepareReport& report);

}  // namespace trireme::data
