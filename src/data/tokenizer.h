// Byte-level BPE tokenizer: text to token ids and back, without loss for any bytes.
//
// A text is cut into pieces by a pattern (data/split.h); inside a piece, adjacent tokens are merged, lowest rank first
// and leftmost first, until no merge is left (Sennrich, Haddow, Birch, "Neural machine translation of rare words with
// subword units", ACL 2016, over bytes as in GPT-2). The result equals tiktoken's for the same ranks and pattern.
//
// Ids: the ranks of the merged byte strings, and those of the special tokens. Ours follow the ranks without a gap; some
// published vocabularies leave ids unused, or put a special between ranks (p50k). vocab_size() is the highest id
// plus 1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

struct SpecialToken {
  std::string text;  ///< UTF-8, not empty
  int64_t id = -1;   ///< -1: the next after the ranks and the specials before it

  bool operator==(const SpecialToken&) const = default;
};

/// Everything that defines a tokenizer; what the trainer makes and the files hold.
struct TokenizerParts {
  std::string pattern;                 ///< `cl100k`, `gpt2`, `o200k` or a regular expression; see Splitter
  std::vector<std::string> ranks;      ///< bytes of token i; empty: no rank has this id. The 256 single bytes are there
  std::vector<SpecialToken> specials;  ///< at least one
  std::string end_of_text;             ///< the special that ends a document
};

/// Immutable after construction; a copy is a cheap handle. Every const function may be called from any thread at once.
class Tokenizer {
 public:
  /// Reads FOLDER/manifest.json and FOLDER/tokenizer.tiktoken, or a file of a published encoding (r50k_base.tiktoken;
  /// see tokenizer_file.h). Throws one InputError that lists every fault found.
  static Tokenizer load(const std::filesystem::path& path);

  /// Throws one InputError that lists every fault of `parts`.
  explicit Tokenizer(TokenizerParts parts);

  /// Writes both files durably, the manifest last; makes the folder.
  void save(const std::filesystem::path& folder) const;

  /// Appends the ids of `text` to `out`: a pure function of the bytes. Special tokens are not recognised (text cannot
  /// inject an end of document). Bytes that are not UTF-8 become single-byte tokens; see Splitter.
  void encode(std::string_view text, std::vector<int32_t>& out) const;

  /// The bytes of the ids one after the other; a special gives its text. Throws InputError for an id outside the
  /// vocabulary, or that the vocabulary leaves unused.
  std::string decode(std::span<const int32_t> ids) const;

  /// Bytes of one token, the text of a special; valid while a copy of this tokenizer lives. Throws InputError as
  /// decode.
  std::string_view token_bytes(int32_t id) const;

  /// The highest id plus 1, specials included: the rows that an embedding needs.
  int64_t vocab_size() const;
  int32_t end_of_text() const;
  bool is_special(int32_t id) const;

  /// 32 hex digits that differ when any id, the pattern or a special differs.
  std::string hash() const;

  const TokenizerParts& parts() const;

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

}  // namespace trireme::data
