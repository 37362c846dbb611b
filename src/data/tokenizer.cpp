#include "data/tokenizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include "base/error.h"
#include "data/bpe_cache.h"
#include "data/bpe_merge.h"
#include "data/split.h"
#include "data/tokenizer_file.h"

namespace trireme::data {
namespace {

/// What a thread keeps between calls. It serves one tokenizer at a time, told apart by a number that is never used
/// twice: an address may come back.
struct ThreadState {
  uint64_t owner = 0;
  PieceCache cache;
  Splitter::Scratch scratch;
  std::vector<int32_t> ids;
};

ThreadState& thread_state(uint64_t owner) {
  thread_local std::unique_ptr<ThreadState> state;
  if (!state) state = std::make_unique<ThreadState>();
  if (state->owner != owner) {
    state->cache.clear();
    state->owner = owner;
  }
  return *state;
}

std::atomic<uint64_t> next_number{1};

/// Gives the specials without an id the ones after the ranks.
void number_specials(TokenizerParts& parts) {
  auto next = static_cast<int64_t>(parts.ranks.size());
  for (SpecialToken& special : parts.specials) {
    if (special.id < 0) special.id = next;
    next = std::max(next, special.id + 1);
  }
}

void check_ranks(const std::vector<std::string>& ranks, std::vector<std::string>& faults) {
  std::unordered_map<std::string_view, size_t, BytesHash> seen;
  std::array<bool, 256> has{};
  for (size_t id = 0; id < ranks.size(); ++id) {
    if (ranks[id].empty()) continue;
    const auto [other, fresh] = seen.emplace(ranks[id], id);
    if (!fresh) faults.push_back(fmt::format("tokens {} and {} have the same bytes", other->second, id));
    if (ranks[id].size() == 1) has[static_cast<unsigned char>(ranks[id][0])] = true;
  }
  const auto missing = std::count(has.begin(), has.end(), false);
  if (missing == 0) return;
  const auto first = std::find(has.begin(), has.end(), false) - has.begin();
  faults.push_back(
      fmt::format("{} of the 256 single bytes are no tokens (the first is 0x{:02X}): not every text could be encoded",
                  missing, first));
}

void check_specials(const TokenizerParts& parts, std::vector<std::string>& faults) {
  if (parts.specials.empty()) faults.push_back("there is no special token; at least the end of text is needed");
  constexpr int64_t kMostId = int64_t{1} << 24;  // of a table with a row an id
  std::unordered_map<int64_t, std::string_view> of_id;
  for (size_t i = 0; i < parts.specials.size(); ++i) {
    const auto& [text, id] = parts.specials[i];
    if (text.empty()) faults.push_back(fmt::format("special token {} is empty", i));
    if (valid_utf8_prefix(text) != text.size()) faults.push_back(fmt::format("special token {} is not UTF-8", i));
    for (size_t other = 0; other < i; ++other) {
      if (parts.specials[other].text == text) faults.push_back(fmt::format("special token `{}` is given twice", text));
    }
    const auto rank = static_cast<size_t>(id);
    if (rank < parts.ranks.size() && !parts.ranks[rank].empty())
      faults.push_back(fmt::format("special token `{}` has id {}, which is that of a rank", text, id));
    if (id > kMostId) faults.push_back(fmt::format("special token `{}` has id {}; {} is the most", text, id, kMostId));
    if (const auto [at, fresh] = of_id.emplace(id, text); !fresh)
      faults.push_back(fmt::format("special tokens `{}` and `{}` have the same id, {}", at->second, text, id));
  }
  const bool ends = std::ranges::count(parts.specials, parts.end_of_text, &SpecialToken::text) > 0;
  if (!parts.specials.empty() && !ends)
    faults.push_back(fmt::format("the end of text `{}` is not one of the special tokens", parts.end_of_text));
}

}  // namespace

struct Tokenizer::Model {
  TokenizerParts parts;
  Splitter splitter;
  MergeTable merges;  ///< views parts.ranks
  uint64_t number = next_number++;
  std::string hash;
  std::unordered_map<int32_t, std::string_view> special_of_id;
  int64_t vocab_size;
  int32_t end_of_text = 0;

  Model(TokenizerParts given, Splitter with)
      : parts(std::move(given)), splitter(std::move(with)), merges(parts.ranks), vocab_size(vocab_size_of(parts)) {
    parts.pattern = splitter.expression();
    hash = tokenizer_hash(parts);
    for (const SpecialToken& special : parts.specials) {
      special_of_id.emplace(static_cast<int32_t>(special.id), special.text);
      if (special.text == parts.end_of_text) end_of_text = static_cast<int32_t>(special.id);
    }
  }
};

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  TokenizerParts parts = std::filesystem::is_regular_file(path) ? read_encoding(path) : read_tokenizer(path);
  try {
    return Tokenizer(std::move(parts));
  } catch (const InputError& error) {
    std::vector<std::string> faults;
    for (const std::string& fault : error.faults()) faults.push_back(path.string() + ": " + fault);
    throw InputError(faults);
  }
}

Tokenizer::Tokenizer(TokenizerParts parts) {
  std::vector<std::string> faults;
  std::optional<Splitter> splitter;
  try {
    splitter.emplace(parts.pattern);
  } catch (const InputError& error) {
    faults.push_back(error.what());
  }
  number_specials(parts);
  check_ranks(parts.ranks, faults);
  check_specials(parts, faults);
  if (!faults.empty()) throw InputError(faults);
  model_ = std::make_shared<const Model>(std::move(parts), std::move(*splitter));
}

void Tokenizer::save(const std::filesystem::path& folder) const { write_tokenizer(folder, model_->parts); }

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& out) const {
  const Model& model = *model_;
  ThreadState& state = thread_state(model.number);
  const char* text_end = text.data() + text.size();
  // Ids gather here first: growing the vector by one or two ids at a time would cost more than finding them.
  constexpr size_t kBatch = 1024;
  std::array<int32_t, kBatch + PieceCache::kMaxIds> batch;
  size_t filled = 0;
  const auto flush = [&] {
    out.insert(out.end(), batch.begin(), batch.begin() + filled);
    filled = 0;
  };
  model.splitter.for_each_piece(text, state.scratch, [&](std::string_view piece) {
    if (piece.size() > PieceCache::kMaxBytes) {
      flush();
      model.merges.encode_piece(piece, out);
      return;
    }
    const auto key = PieceCache::make_key(piece, static_cast<size_t>(text_end - piece.data()));
    PieceCache::Entry& entry = state.cache.place(key);
    if (!(entry.key == key)) {
      state.ids.clear();
      model.merges.encode_piece(piece, state.ids);
      if (state.ids.size() > PieceCache::kMaxIds) {
        flush();
        out.insert(out.end(), state.ids.begin(), state.ids.end());
        return;
      }
      entry.key = key;
      entry.count = static_cast<int32_t>(state.ids.size());
      std::copy(state.ids.begin(), state.ids.end(), entry.ids.begin());
    }
    std::copy(entry.ids.begin(), entry.ids.end(), batch.begin() + filled);  // all seven: a fixed size has no loop
    filled += static_cast<size_t>(entry.count);
    if (filled >= kBatch) flush();
  });
  flush();
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += token_bytes(id);
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    throw_input("token id {} is not in the vocabulary of {} tokens (0 to {})", id, vocab_size(), vocab_size() - 1);
  }
  if (const auto special = model_->special_of_id.find(id); special != model_->special_of_id.end())
    return special->second;
  const std::vector<std::string>& ranks = model_->parts.ranks;
  const auto index = static_cast<size_t>(id);
  if (index >= ranks.size() || ranks[index].empty())
    throw_input("token id {} is one that this vocabulary does not use", id);
  return ranks[index];
}

int64_t Tokenizer::vocab_size() const { return model_->vocab_size; }

int32_t Tokenizer::end_of_text() const { return model_->end_of_text; }

bool Tokenizer::is_special(int32_t id) const { return model_->special_of_id.contains(id); }

std::string Tokenizer::hash() const { return model_->hash; }

const TokenizerParts& Tokenizer::parts() const { return model_->parts; }

}  // namespace trireme::data
