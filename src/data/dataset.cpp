#include "data/dataset.h"

#include <algorithm>

#include "base/error.h"
#include "data/shard.h"
#include "data/tokenizer.h"

namespace trireme::data {

Dataset::~Dataset() = default;

std::shared_ptr<const Dataset> Dataset::open(const std::filesystem::path& folder) {
  std::shared_ptr<Dataset> set(new Dataset());
  set->folder_ = folder;
  set->manifest_ = read_manifest(folder);
  std::vector<std::string> faults;
  for (const ShardEntry& entry : set->manifest_.shards) {
    set->first_token_.push_back(set->token_count_);
    set->first_document_.push_back(set->document_count_);
    set->first_byte_.push_back(set->text_bytes_);
    set->token_count_ += entry.tokens;
    set->document_count_ += entry.documents;
    set->text_bytes_ += entry.text_bytes;
    try {
      set->shards_.push_back(std::make_unique<ShardFile>(folder / entry.file, entry, set->manifest_.id_bytes));
    } catch (const InputError& error) {
      faults.push_back(error.what());
    }
  }
  set->first_token_.push_back(set->token_count_);
  set->first_document_.push_back(set->document_count_);
  set->first_byte_.push_back(set->text_bytes_);
  if (!faults.empty()) throw InputError(faults);
  return set;
}

std::string Dataset::fingerprint() const { return manifest_.fingerprint(); }

size_t Dataset::shard_of_token(int64_t position) const {
  return static_cast<size_t>(std::upper_bound(first_token_.begin(), first_token_.end(), position) -
                             first_token_.begin()) -
         1;
}

void Dataset::copy_tokens(int64_t begin, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  TRIREME_CHECK(begin >= 0 && begin + count <= token_count_, "tokens [{}, {}) of {}", begin, begin + count,
                token_count_);
  while (!out.empty()) {
    const size_t shard = shard_of_token(begin);
    const int64_t here = std::min(static_cast<int64_t>(out.size()), first_token_[shard + 1] - begin);
    shards_[shard]->copy_tokens(begin - first_token_[shard], out.first(static_cast<size_t>(here)));
    out = out.subspan(static_cast<size_t>(here));
    begin += here;
  }
}

Document Dataset::document(int64_t index) const {
  TRIREME_CHECK(index >= 0 && index < document_count_, "document {} of {}", index, document_count_);
  const auto above = std::upper_bound(first_document_.begin(), first_document_.end(), index);
  const auto shard = static_cast<size_t>(above - first_document_.begin()) - 1;
  const ShardFile& file = *shards_[shard];
  const int64_t local = index - first_document_[shard];
  const ShardDocument& row = file.document(local);
  return {.first_token = first_token_[shard] + static_cast<int64_t>(row.first_token),
          .tokens = file.tokens_of(local),
          .text_bytes = static_cast<int64_t>(row.text_bytes),
          .name = file.name(local),
          .shard = static_cast<int64_t>(shard)};
}

int64_t Dataset::document_of_token(int64_t position) const {
  TRIREME_CHECK(position >= 0 && position < token_count_, "token {} of {}", position, token_count_);
  const size_t shard = shard_of_token(position);
  return first_document_[shard] + shards_[shard]->document_of_token(position - first_token_[shard]);
}

int64_t Dataset::text_bytes_of_prefix(int64_t tokens, std::span<const int32_t> token_bytes) const {
  TRIREME_CHECK(tokens >= 0 && tokens <= token_count_, "a prefix of {} tokens of {}", tokens, token_count_);
  if (tokens == token_count_) return text_bytes_;
  // Whole shards, then whole documents by their table, and only the document that the prefix cuts token by token.
  const size_t shard = shard_of_token(tokens);
  int64_t bytes = first_byte_[shard];
  const int64_t cut = document_of_token(tokens) - first_document_[shard];
  for (int64_t i = 0; i < cut; ++i) bytes += static_cast<int64_t>(shards_[shard]->document(i).text_bytes);
  int64_t position = first_token_[shard] + static_cast<int64_t>(shards_[shard]->document(cut).first_token);
  std::vector<int32_t> ids;
  while (position < tokens) {
    ids.resize(static_cast<size_t>(std::min<int64_t>(tokens - position, 1 << 16)));
    copy_tokens(position, ids);
    for (const int32_t id : ids) {
      TRIREME_CHECK(id >= 0 && static_cast<size_t>(id) < token_bytes.size(), "id {} of {}", id, token_bytes.size());
      bytes += token_bytes[static_cast<size_t>(id)];
    }
    position += static_cast<int64_t>(ids.size());
  }
  return bytes;
}

std::vector<std::string> Dataset::verify() const {
  std::vector<std::string> faults;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const auto found = shards_[i]->verify(manifest_.shards[i].checksum, manifest_.vocab_size, manifest_.end_of_text);
    faults.insert(faults.end(), found.begin(), found.end());
  }
  try {
    const std::string hash = Tokenizer::load(tokenizer_folder()).hash();
    if (hash != manifest_.tokenizer_hash)
      faults.push_back(fmt::format("{} is another tokenizer ({}) than the one of the shards ({})",
                                   tokenizer_folder().string(), hash, manifest_.tokenizer_hash));
  } catch (const InputError& error) {
    faults.insert(faults.end(), error.faults().begin(), error.faults().end());
  }
  return faults;
}

}  // namespace trireme::data
