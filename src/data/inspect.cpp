#include "data/inspect.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "data/tokenizer.h"

namespace trireme::data {
namespace {

std::string decode(const Dataset& dataset, int64_t begin, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  dataset.copy_tokens(begin, ids);
  return Tokenizer::load(dataset.tokenizer_folder()).decode(ids);
}

}  // namespace

std::string describe(const Dataset& dataset, int64_t rows) {
  const Manifest& manifest = dataset.manifest();
  std::string text = fmt::format("{}\n", dataset.folder().string());
  text += fmt::format(
      "  tokens       {}\n  documents    {}\n  text bytes   {}  ({:.3f} a token)\n", dataset.token_count(),
      dataset.document_count(), dataset.text_bytes(),
      static_cast<double>(dataset.text_bytes()) / static_cast<double>(std::max<int64_t>(dataset.token_count(), 1)));
  text += fmt::format("  vocabulary   {} ({} bytes an id), end-of-text {}\n  tokenizer    {}\n  fingerprint  {}\n",
                      manifest.vocab_size, manifest.id_bytes, manifest.end_of_text, manifest.tokenizer_hash,
                      dataset.fingerprint());
  text += fmt::format("\n{:<20} {:>12} {:>12} {:>10} {:>12}  {}\n", "shard", "bytes", "tokens", "documents",
                      "text bytes", "XXH3-128");
  for (const ShardEntry& shard : manifest.shards) {
    text += fmt::format("{:<20} {:>12} {:>12} {:>10} {:>12}  {}\n", shard.file, shard.bytes, shard.tokens,
                        shard.documents, shard.text_bytes, shard.checksum);
  }
  text += fmt::format("\n{:>9} {:>14} {:>10} {:>10}  {}\n", "document", "first token", "tokens", "bytes", "name");
  const int64_t shown = std::min(rows, dataset.document_count());
  for (int64_t i = 0; i < shown; ++i) {
    const Document document = dataset.document(i);
    text += fmt::format("{:>9} {:>14} {:>10} {:>10}  {}\n", i, document.first_token, document.tokens,
                        document.text_bytes, document.name);
  }
  if (shown < dataset.document_count()) text += fmt::format("... {} more\n", dataset.document_count() - shown);
  return text;
}

std::string describe_document(const Dataset& dataset, int64_t index) {
  if (index < 0 || index >= dataset.document_count()) {
    throw_input("there is no document {}: {} has documents 0 to {}", index, dataset.folder().string(),
                dataset.document_count() - 1);
  }
  const Document document = dataset.document(index);
  return fmt::format("document {} ({}, {}): {} tokens, {} bytes of text\n{}\n", index, document.name,
                     dataset.manifest().shards[static_cast<size_t>(document.shard)].file, document.tokens,
                     document.text_bytes, decode(dataset, document.first_token, document.tokens));
}

std::string describe_sample(const Dataset& dataset, int64_t sample, int64_t seq_len) {
  if (seq_len < 1) throw_input("--seq-len {} must be at least 1", seq_len);
  const int64_t samples = std::max<int64_t>(dataset.token_count() - 1, 0) / seq_len;
  if (sample < 0 || sample >= samples) {
    throw_input("there is no sample {}: {} has {} samples of {} tokens", sample, dataset.folder().string(), samples,
                seq_len);
  }
  const int64_t begin = sample * seq_len;
  return fmt::format("sample {}: tokens {} to {}, from document {}\n{}\n", sample, begin, begin + seq_len,
                     dataset.document_of_token(begin), decode(dataset, begin, seq_len + 1));
}

}  // namespace trireme::data
