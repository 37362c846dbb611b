// Waves of some MiB of text: read, check and hash in parallel; decide in order which documents stay; tokenize those in
// parallel; append in order. What is decided in order depends on no other thing than the documents before, so that
// neither the size of a wave nor the number of threads shows in the output.
#include "data/prepare_pipeline.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"
#include "data/prepare_tokens.h"
#include "data/shard.h"

namespace trireme::data {
namespace {

constexpr int64_t wave_bytes_a_thread = int64_t{4} << 20;
constexpr size_t wave_documents = 4096;  // bounds the number of mapped files

TextHash hash_of(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

/// Calls work(0 .. count-1) from `threads` threads; rethrows the failure of the lowest index.
template <typename Work>
void parallel_for(size_t count, int threads, const Work& work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  size_t failed = count;
  const auto loop = [&] {
    for (size_t i; (i = next.fetch_add(1)) < count;) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          failure = std::current_exception();
        }
      }
    }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < std::min<int64_t>(threads, static_cast<int64_t>(count)); ++i) helpers.emplace_back(loop);
  loop();
  helpers.clear();
  if (failure) std::rethrow_exception(failure);
}

std::shared_ptr<const InputText> open_input(const InputFile& file, const std::filesystem::path& scratch) {
  auto opened = InputText::open(file.path, scratch);
  if (opened->file_bytes() != file.bytes) {
    throw_input("{} changed while it was prepared: it had {} bytes and has {}; start again when it is still",
                file.path.string(), file.bytes, opened->file_bytes());
  }
  return opened;
}

/// `FILE, line 7`: where in a file of lines an offset is.
std::string place_of(const InputFile& file, std::string_view text, size_t offset) {
  return fmt::format("{}, line {}", file.path.string(),
                     std::count(text.begin(), text.begin() + static_cast<int64_t>(offset), '\n') + 1);
}

}  // namespace

int prepare_threads(const PrepareOptions& options) {
  return options.threads > 0 ? options.threads : static_cast<int>(usable_cores());
}

int id_bytes_for(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

enum class Fate { keep, other_split, empty, invalid, duplicate, held_out };

struct SplitPipeline::Item {
  uint64_t file = 0;
  TextRange range;
  bool ends_file = false;
  std::shared_ptr<const InputText> mapped;
  std::string decoded;    // holds the text when it was taken out of a line of JSON, or bytes of it were replaced
  std::string_view text;  // of `mapped` or `decoded`
  std::string fault;      // of a line of JSON
  TextHash hash;          // of `text`
  TextHash file_hash;     // of the whole file, when ends_file
  size_t invalid_at = std::string_view::npos;
  Fate fate = Fate::keep;
  std::vector<int32_t> ids;
};

/// Hands out the documents of the split's files in order.
class SplitPipeline::Source {
 public:
  Source(const SplitPipeline& pipeline, uint64_t file, uint64_t offset)
      : pipeline_(pipeline), file_(file), offset_(offset) {}

  /// The next wave; empty at the end.
  std::vector<Item> next_wave() {
    std::vector<Item> wave;
    int64_t bytes = 0;
    const int64_t budget = wave_bytes_a_thread * pipeline_.threads_;
    const std::vector<InputFile>& files = pipeline_.inputs_.files;
    while (file_ < files.size() && bytes < budget && wave.size() < wave_documents) {
      if (!pipeline_.takes_file(file_)) {
        ++file_;
        continue;
      }
      if (!mapped_) open();
      const std::string_view text = mapped_->text();
      const bool json = pipeline_.json_lines_[file_];
      Item& item = wave.emplace_back();
      item.file = file_;
      item.mapped = mapped_;
      item.range =
          json ? next_line(text, offset_) : next_document(text, offset_, pipeline_.options_.document_separator);
      item.text = text.substr(item.range.begin, item.range.end - item.range.begin);
      item.ends_file = item.range.next >= text.size();
      item.file_hash = file_hash_;
      bytes += static_cast<int64_t>(item.text.size()) + 64;
      offset_ = item.range.next;
      if (item.ends_file) {
        ++file_;
        offset_ = 0;
        mapped_.reset();
      }
    }
    return wave;
  }

 private:
  void open() {
    mapped_ = pipeline_.open(file_);
    // A file that is one document is hashed with its text, in parallel.
    if (pipeline_.has_many_documents(file_)) file_hash_ = hash_of(mapped_->text());
  }

  const SplitPipeline& pipeline_;
  uint64_t file_;
  uint64_t offset_;
  std::shared_ptr<const InputText> mapped_;
  TextHash file_hash_;
};

SplitPipeline::SplitPipeline(const PrepareOptions& options, const Inputs& inputs, const Tokenizer& tokenizer,
                             KnownTexts& known, SplitProgress& progress, std::function<void()> record)
    : options_(options),
      inputs_(inputs),
      tokenizer_(tokenizer),
      known_(known),
      progress_(progress),
      record_(std::move(record)),
      id_bytes_of_text_(text_bytes_of_ids(tokenizer)),
      threads_(prepare_threads(options)) {
  for (const InputFile& file : inputs.files) json_lines_.push_back(is_json_lines(file.path));
}

bool SplitPipeline::takes_file(size_t index) const {
  return options_.eval_hash_percent > 0 || inputs_.held_out[index] == is_eval();
}

bool SplitPipeline::takes(const TextHash& hash) const {
  if (options_.eval_hash_percent <= 0) return true;
  const double uniform = static_cast<double>(hash.high >> 11) * 0x1p-53;  // in [0, 1)
  return (uniform * 100 < options_.eval_hash_percent) == is_eval();
}

bool SplitPipeline::has_many_documents(size_t file) const {
  return !options_.document_separator.empty() || json_lines_[file];
}

// Unpacking takes time, so the files that were opened last are kept.
std::shared_ptr<const InputText> SplitPipeline::open(size_t file) const {
  constexpr size_t kKept = 4;
  const auto known = std::ranges::find(opened_, file, &std::pair<size_t, std::shared_ptr<const InputText>>::first);
  if (known != opened_.end()) return known->second;
  opened_.emplace_front(file, open_input(inputs_.files[file], options_.out));
  if (opened_.size() > kKept) opened_.pop_back();
  return opened_.front().second;
}

// The text of a document from its bytes in the file.
std::string_view SplitPipeline::decode(size_t file, std::string_view raw, std::string& holder) const {
  if (!json_lines_[file]) return raw;
  holder = is_blank(raw) ? std::string() : text_of_line(raw, options_.text_field);
  return holder;
}

void SplitPipeline::examine(Item& item) const {
  const std::string_view raw = item.text;
  try {
    item.text = decode(item.file, raw, item.decoded);
  } catch (const InputError& error) {
    item.fault = error.what();
    return;
  }
  item.invalid_at = find_invalid_utf8(item.text);
  if (item.invalid_at != std::string_view::npos && options_.invalid_utf8 == InvalidUtf8::replace) {
    item.decoded = replace_invalid_utf8(item.text);
    item.text = item.decoded;
  }
  item.hash = hash_of(item.text);
  if (!has_many_documents(item.file)) item.file_hash = item.decoded.empty() ? item.hash : hash_of(raw);
}

bool SplitPipeline::is_same_text(const KnownText& known, const Item& item) const {
  const std::shared_ptr<const InputText> mapped = open(known.file);
  std::string holder;
  const std::string_view text = decode(known.file, mapped->text().substr(known.offset, known.bytes), holder);
  if (options_.invalid_utf8 == InvalidUtf8::replace) return replace_invalid_utf8(text) == item.text;
  return text == item.text;
}

void SplitPipeline::decide(Item& item) {
  const bool invalid = item.invalid_at != std::string_view::npos;
  if (!takes(item.hash)) {
    item.fate = Fate::other_split;
  } else if (is_blank(item.text)) {
    item.fate = Fate::empty;
  } else if (invalid && options_.invalid_utf8 == InvalidUtf8::drop) {
    item.fate = Fate::invalid;
  } else {
    const KnownText here{item.file, item.range.begin, item.range.end - item.range.begin, is_eval()};
    const auto [entry, is_new] = known_.try_emplace(item.hash, here);
    // Equal hashes of different texts: both stay.
    if (!is_new && is_same_text(entry->second, item)) {
      item.fate = entry->second.held_out && !is_eval() ? Fate::held_out : Fate::duplicate;
    }
  }
}

void SplitPipeline::append(Item& item) {
  PrepareCounts& counts = progress_.counts;
  const InputFile& file = inputs_.files[item.file];
  const bool invalid = item.invalid_at != std::string_view::npos && item.fate != Fate::other_split;
  counts.invalid += invalid ? 1 : 0;
  switch (item.fate) {
    case Fate::other_split:
      break;
    case Fate::empty:
      ++counts.empty;
      break;
    case Fate::invalid:
      ++counts.invalid_dropped;
      break;
    case Fate::duplicate:
      ++counts.duplicates;
      break;
    case Fate::held_out:
      ++counts.held_out;
      break;
    case Fate::keep:
      ++counts.documents;
      counts.tokens += static_cast<int64_t>(item.ids.size());
      counts.text_bytes += static_cast<int64_t>(item.text.size());
      writer_->add({.first_token = 0,
                    .text_bytes = item.text.size(),
                    .text_hash_low = item.hash.low,
                    .text_hash_high = item.hash.high,
                    .token_hash = 0,
                    .source_file = item.file,
                    .source_offset = item.range.begin,
                    .source_bytes = item.range.end - item.range.begin,
                    .name_offset = 0},
                   file.name, item.ids);
      break;
  }
  if (item.ends_file) progress_.content.add(item.file_hash.low, item.file_hash.high, file.name);
  if (writer_->tokens() >= options_.shard_tokens) {
    write_shard(item.ends_file ? item.file + 1 : item.file, item.ends_file ? 0 : item.range.next);
  }
  item = Item();  // frees ids and text
}

void SplitPipeline::write_shard(uint64_t next_file, uint64_t next_offset) {
  const std::string name = fmt::format("shard-{:05}.tokens", progress_.shards.size());
  progress_.shards.push_back(writer_->write(folder() / name));
  progress_.next_file = next_file;
  progress_.next_offset = next_offset;
  record_();
  if (options_.on_shard) options_.on_shard(progress_.name, progress_.shards.back());
}

void SplitPipeline::remember_shards() {
  for (const ShardEntry& entry : progress_.shards) {
    const ShardFile shard(folder() / entry.file, entry, id_bytes_for(tokenizer_.vocab_size()));
    const std::vector<std::string> faults =
        shard.verify(entry.checksum, tokenizer_.vocab_size(), tokenizer_.end_of_text());
    if (!faults.empty()) throw InputError(faults);
    for (int64_t i = 0; i < shard.documents(); ++i) {
      const ShardDocument& row = shard.document(i);
      if (row.source_file >= inputs_.files.size()) throw_input("shard {} is of other inputs", entry.file);
      known_.try_emplace({row.text_hash_low, row.text_hash_high},
                         KnownText{row.source_file, row.source_offset, row.source_bytes, is_eval()});
    }
  }
}

void SplitPipeline::run() {
  ShardWriter writer(id_bytes_for(tokenizer_.vocab_size()));
  writer_ = &writer;
  Source source(*this, progress_.next_file, progress_.next_offset);
  for (std::vector<Item> wave = source.next_wave(); !wave.empty(); wave = source.next_wave()) {
    parallel_for(wave.size(), threads_, [&](size_t i) { examine(wave[i]); });
    std::vector<std::string> faults;
    for (Item& item : wave) {
      if (!item.fault.empty()) {
        if (faults.size() < 10)
          faults.push_back(fmt::format(
              "{} {}", place_of(inputs_.files[item.file], item.mapped->text(), item.range.begin), item.fault));
        continue;
      }
      decide(item);
      if (options_.invalid_utf8 == InvalidUtf8::error && item.invalid_at != std::string_view::npos &&
          faults.size() < 10) {
        faults.push_back(
            fmt::format("{} is not UTF-8: byte {} at offset {} does not belong there; mend it, or take --invalid-utf8 "
                        "keep, replace or drop",
                        inputs_.files[item.file].path.string(),
                        fmt::format("0x{:02X}", static_cast<uint8_t>(item.text[item.invalid_at])),
                        item.range.begin + item.invalid_at));
      }
    }
    if (!faults.empty()) throw InputError(faults);
    parallel_for(wave.size(), threads_, [&](size_t i) {
      Item& item = wave[i];
      if (item.fate != Fate::keep) return;
      tokenizer_.encode(item.text, item.ids);
      size_t bytes = 0;
      for (const int32_t id : item.ids) bytes += static_cast<size_t>(id_bytes_of_text_.at(static_cast<size_t>(id)));
      TRIREME_CHECK(bytes == item.text.size(), "{} has {} bytes and its tokens stand for {}",
                    inputs_.files[item.file].path.string(), item.text.size(), bytes);
      item.ids.push_back(tokenizer_.end_of_text());
    });
    for (Item& item : wave) append(item);
  }
  if (!writer.empty()) write_shard(inputs_.files.size(), 0);
  progress_.next_file = inputs_.files.size();
  progress_.next_offset = 0;
  progress_.complete = true;
  record_();
  writer_ = nullptr;
}

bool content_is_unchanged(const Journal& journal, const Inputs& inputs, const std::filesystem::path& scratch) {
  const bool by_hash = journal.settings.value("eval-hash", 0.0) > 0;
  std::vector<ContentSum> sums(journal.splits.size());
  for (size_t f = 0; f < inputs.files.size(); ++f) {
    const InputFile& file = inputs.files[f];
    const TextHash hash = hash_of(open_input(file, scratch)->text());
    for (size_t i = 0; i < sums.size(); ++i) {
      if (by_hash || inputs.held_out[f] == (journal.splits[i].name == "eval"))
        sums[i].add(hash.low, hash.high, file.name);
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i] != journal.splits[i].content) return false;
  }
  return true;
}

}  // namespace trireme::data
