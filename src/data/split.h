// Cuts text into the pieces inside which tokens merge.
//
// Every byte of a text lies in exactly one piece, for any bytes and any pattern:
//  - a text is taken as stretches of valid UTF-8 with invalid bytes between them. An invalid byte is a piece by itself,
//    and a stretch is split as if it were a whole text, so its end is an end of text to the pattern;
//  - inside a stretch, pieces are the successive matches of the pattern (empty ones do not count), and what lies
//    between two matches is a piece too. The patterns with a name match everywhere, so they leave nothing between.
//
// `cl100k`, `gpt2` and `o200k` are the patterns published with those vocabularies (openai/tiktoken,
// tiktoken_ext/openai_public.py, in the form without possessive quantifiers). They run by hand over ASCII, and through
// PCRE2 wherever another character could matter; a test compares both ways. Unicode classes are those of the PCRE2 in
// use (10.42: Unicode 14).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "data/split_utf8.h"

namespace trireme::data {

/// Immutable; any number of threads may use one, each with its own scratch.
class Splitter {
 public:
  /// Buffers of one thread for the pattern engine. May serve any number of splitters, one call at a time.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Splitter;
    struct Buffers;
    std::unique_ptr<Buffers> buffers_;
  };

  enum class Way {
    fast,     ///< by hand where that is proven equal
    pattern,  ///< through PCRE2 only: the reference
  };

  /// `pattern`: `cl100k`, `gpt2`, `o200k`, or a regular expression in PCRE2's syntax. Throws InputError when it does
  /// not compile.
  explicit Splitter(const std::string& pattern, Way way = Way::fast);

  /// The regular expression in the spelling that other tools understand.
  const std::string& expression() const { return expression_; }

  /// True when a new piece begins at every space that follows an ASCII letter, whatever stands around: there a text may
  /// be cut and its parts split independently.
  bool cuts_between_letter_and_space() const { return kind_ != Kind::custom; }

  /// End of the piece that begins at `begin` (< stretch.size()); `stretch` is valid UTF-8. Throws InputError when the
  /// pattern needs more steps or stack than PCRE2 allows.
  size_t piece_end(std::string_view stretch, size_t begin, Scratch& scratch) const;

  /// Calls sink(std::string_view piece) for each piece of `text`, in order.
  template <typename Sink>
  void for_each_piece(std::string_view text, Scratch& scratch, Sink&& sink) const {
    while (!text.empty()) {
      const std::string_view stretch = text.substr(0, valid_utf8_prefix(text));
      for (size_t begin = 0; begin < stretch.size();) {
        const size_t end = piece_end(stretch, begin, scratch);
        sink(stretch.substr(begin, end - begin));
        begin = end;
      }
      text.remove_prefix(stretch.size());
      if (text.empty()) break;
      sink(text.substr(0, 1));
      text.remove_prefix(1);
    }
  }

 private:
  enum class Kind { cl100k, gpt2, o200k, custom };
  struct Compiled;

  size_t matched_end(std::string_view stretch, size_t begin, Scratch& scratch) const;

  Kind kind_;
  Way way_;
  std::string expression_;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace trireme::data
