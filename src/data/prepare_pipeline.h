// The work of a preparation: one split from its files to its shards.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "data/input_text.h"
#include "data/prepare_inputs.h"
#include "data/prepare_journal.h"
#include "data/tokenizer.h"

namespace trireme::data {

/// Where a text was first seen.
struct KnownText {
  uint64_t file = 0;  ///< index in Inputs::files
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool held_out = false;
};

struct TextHash {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const TextHash&) const = default;
};
struct TextHashHash {
  size_t operator()(const TextHash& hash) const { return hash.low; }
};
using KnownTexts = std::unordered_map<TextHash, KnownText, TextHashHash>;

class SplitPipeline {
 public:
  /// `known` holds the texts of the splits before; those of this one are added. `record` makes progress durable.
  SplitPipeline(const PrepareOptions& options, const Inputs& inputs, const Tokenizer& tokenizer, KnownTexts& known,
                SplitProgress& progress, std::function<void()> record);

  /// Continues from `progress` to the end of the split.
  void run();

  /// Adds the texts of finished shards to `known`. Throws InputError when one of them is damaged.
  void remember_shards();

 private:
  struct Item;
  class Source;

  bool is_eval() const { return progress_.name == "eval"; }
  bool takes_file(size_t index) const;
  bool takes(const TextHash& hash) const;
  void examine(Item& item) const;
  void decide(Item& item);
  void append(Item& item);
  void write_shard(uint64_t next_file, uint64_t next_offset);
  bool is_same_text(const KnownText& known, const Item& item) const;
  bool has_many_documents(size_t file) const;
  std::shared_ptr<const InputText> open(size_t file) const;
  std::string_view decode(size_t file, std::string_view raw, std::string& holder) const;
  std::filesystem::path folder() const { return options_.out / progress_.folder; }

  const PrepareOptions& options_;
  const Inputs& inputs_;
  const Tokenizer& tokenizer_;
  KnownTexts& known_;
  SplitProgress& progress_;
  std::function<void()> record_;
  std::vector<int32_t> id_bytes_of_text_;
  std::vector<bool> json_lines_;  ///< by index of the file
  int threads_;
  class ShardWriter* writer_ = nullptr;  // lives in run()
  mutable std::deque<std::pair<size_t, std::shared_ptr<const InputText>>> opened_;
};

/// Whether the files of all splits still have the content that `journal` saw; reads all of them, and unpacks in
/// `scratch`.
bool content_is_unchanged(const Journal& journal, const Inputs& inputs, const std::filesystem::path& scratch);

int prepare_threads(const PrepareOptions& options);
/// 2 bytes while every id fits, else 4.
int id_bytes_for(int64_t vocab_size);

}  // namespace trireme::data
