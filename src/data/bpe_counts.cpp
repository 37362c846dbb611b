#include "data/bpe_counts.h"

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/input_text.h"
#include "data/prepare_text.h"

namespace trireme::data {
namespace {

constexpr size_t kStorageBlock = 1 << 20;
constexpr size_t kTaskBytes = 4 << 20;

/// One stretch of work: block `block` of a file, from the first cut in it to the first cut in a later block.
struct Task {
  size_t file;
  size_t block;
  bool cut;  ///< else the whole file
};

template <typename Sink>
void for_each_line(const std::filesystem::path& path, std::string_view file, const std::string& field,
                   const Sink& sink) {
  int64_t number = 1;
  for (size_t at = 0; at < file.size(); ++number) {
    const TextRange range = next_line(file, at);
    at = range.next;
    const std::string_view line = file.substr(range.begin, range.end - range.begin);
    if (is_blank(line)) continue;
    try {
      sink(text_of_line(line, field));
    } catch (const InputError& error) {
      throw_input("{}, line {} {}", path.string(), number, error.what());
    }
  }
}

bool is_ascii_letter(char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

/// The first place in block `block` where a file may be cut, or npos when the block has none. Looking no further than
/// the block keeps the search linear for a text without cuts.
size_t cut_in_block(std::string_view text, size_t block) {
  if (block == 0) return 0;
  const size_t end = std::min(text.size(), (block + 1) * kTaskBytes);
  for (size_t i = block * kTaskBytes; i < end; ++i) {
    if (text[i] == ' ' && is_ascii_letter(text[i - 1])) return i;
  }
  return std::string_view::npos;
}

std::string_view text_of(std::string_view text, size_t block) {
  const size_t begin = cut_in_block(text, block);
  if (begin == std::string_view::npos) return {};
  for (size_t next = block + 1; next * kTaskBytes < text.size(); ++next) {
    const size_t end = cut_in_block(text, next);
    if (end != std::string_view::npos) return text.substr(begin, end - begin);
  }
  return text.substr(begin);
}

}  // namespace

std::string_view PieceCounts::keep(std::string_view bytes) {
  if (blocks_.empty() || blocks_.back().capacity() - blocks_.back().size() < bytes.size()) {
    blocks_.emplace_back().reserve(std::max(kStorageBlock, bytes.size()));  // never grows after: the views stay valid
  }
  std::string& block = blocks_.back();
  const size_t at = block.size();
  block += bytes;
  return std::string_view(block).substr(at);
}

void PieceCounts::add(std::string_view piece, int64_t count) {
  while (!piece.empty()) {
    const std::string_view part = piece.substr(0, kMaxBytes);
    piece.remove_prefix(part.size());
    total_ += count;
    const auto known = counts_.find(part);
    if (known != counts_.end()) {
      known->second += count;
    } else {
      counts_.emplace(keep(part), count);
    }
  }
}

void PieceCounts::add(const PieceCounts& other) {
  for (const auto& [piece, count] : other.counts_) add(piece, count);
}

PieceCounts count_pieces(std::span<const std::filesystem::path> files, const Splitter& splitter, int threads,
                         const std::string& text_field) {
  TRIREME_CHECK(threads > 0, "{} threads", threads);
  // Only sizes are kept: a machine lets a process map some 65,000 files at once (vm.max_map_count), and a corpus may
  // have more. Each task opens its file anew.
  std::vector<size_t> sizes(files.size());
  std::vector<std::string> faults;
  std::vector<Task> tasks;
  for (size_t i = 0; i < files.size(); ++i) {
    try {
      sizes[i] = MappedFile(files[i]).text().size();
    } catch (const InputError& error) {
      faults.push_back(error.what());
      continue;
    }
    const bool cut = splitter.cuts_between_letter_and_space() && !is_packed(files[i]) && !is_json_lines(files[i]);
    const size_t blocks = cut ? (sizes[i] + kTaskBytes - 1) / kTaskBytes : 1;
    for (size_t block = 0; block < blocks; ++block) tasks.push_back({i, block, cut});
  }
  if (!faults.empty()) throw InputError(faults);

  std::atomic<size_t> next{0};
  std::vector<PieceCounts> counts(static_cast<size_t>(threads));
  std::vector<std::exception_ptr> errors(tasks.size());
  const auto work = [&](PieceCounts& mine) {
    Splitter::Scratch scratch;
    for (size_t i = next++; i < tasks.size(); i = next++) {
      try {
        const size_t file = tasks[i].file;
        const auto input = InputText::open(files[file], std::filesystem::temp_directory_path());
        const std::string_view whole = input->text();
        if (input->file_bytes() != static_cast<int64_t>(sizes[file]))
          throw_input("{} changed while it was read: {} bytes, then {}", files[file].string(), sizes[file],
                      input->file_bytes());
        const auto count = [&](std::string_view text) {
          splitter.for_each_piece(text, scratch, [&](std::string_view piece) { mine.add(piece); });
        };
        if (is_json_lines(files[file]))
          for_each_line(files[file], whole, text_field, count);
        else
          count(tasks[i].cut ? text_of(whole, tasks[i].block) : whole);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&, i] { work(counts[static_cast<size_t>(i)]); });
    work(counts[0]);
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  for (size_t i = 1; i < counts.size(); ++i) counts[0].add(counts[i]);
  return std::move(counts[0]);
}

}  // namespace trireme::data
