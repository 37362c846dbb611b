#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/split.h"
#include "test_tokenizer_helpers.h"

namespace trireme::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> pieces(const Splitter& splitter, std::string_view text) {
  Splitter::Scratch scratch;
  std::vector<std::string> found;
  splitter.for_each_piece(text, scratch, [&](std::string_view piece) { found.emplace_back(piece); });
  return found;
}

struct Row {
  const char* name;
  const char* pattern;
  std::string text;
  std::vector<std::string> expected;
};

TEST(Split, Table) {
  const std::vector<Row> rows{
      {"empty", "cl100k", "", {}},
      {"words take the space before them", "cl100k", "Hello big world", {"Hello", " big", " world"}},
      {"contractions", "cl100k", "we'Ll don't", {"we", "'Ll", " don", "'t"}},
      {"gpt2 contractions are lower case", "gpt2", "we'LL he'll", {"we", "'", "LL", " he", "'ll"}},
      {"long s is an s", "cl100k", "it'\u017F", {"it", "'\u017F"}},
      {"digits in threes", "cl100k", "12345 6", {"123", "45", " ", "6"}},
      {"gpt2 digits together", "gpt2", "12345 6", {"12345", " 6"}},
      {"punctuation takes newlines", "cl100k", "end.\n\n\nNext", {"end", ".\n\n\n", "Next"}},
      {"tab goes with a word", "cl100k", "\tx", {"\tx"}},
      {"spaces before a word", "cl100k", "a   b", {"a", "  ", " b"}},
      {"spaces up to the last newline", "cl100k", "a \n \n  b", {"a", " \n \n", " ", " b"}},
      {"gpt2 newlines", "gpt2", "a\n\nb", {"a", "\n", "\n", "b"}},
      {"o200k takes a contraction with its word", "o200k", "We'Ll DON'T", {"We'Ll", " DON'T"}},
      {"o200k cuts before a capital", "o200k", "helloWorld HTTPServer", {"hello", "World", " HTTPServer"}},
      {"o200k newlines and slashes", "o200k", "x/\n/y //", {"x", "/\n/", "y", " //"}},
      {"trailing spaces stay together", "cl100k", "a   ", {"a", "   "}},
      {"mongolian vowel separator is no space", "gpt2", "\u180E\u180E", {"\u180E\u180E"}},
      {"wide spaces", "gpt2", "\u2003\u2003x", {"\u2003", "\u2003", "x"}},
      {"invalid bytes stand alone",
       "cl100k",
       "ab\xFF\xFE"
       "cd",
       {"ab", "\xFF", "\xFE", "cd"}},
      {"a cut sequence", "cl100k", "ab\xE4\xB8", {"ab", "\xE4", "\xB8"}},
      {"an invalid byte ends the text before it", "cl100k", "a  \xFF", {"a", "  ", "\xFF"}},
      {"gaps of a custom pattern are pieces", "[a-z]+", "ab12cd!", {"ab", "12", "cd", "!"}},
      {"empty matches do not count", "x*", "axxb", {"a", "xx", "b"}},
      {"a pattern that looks behind", "(?<=a)b|a", "abb", {"a", "b", "b"}},
  };
  for (const Row& row : rows) EXPECT_EQ(pieces(Splitter(row.pattern), row.text), row.expected) << row.name;
}

TEST(Split, ByHandEqualsThePattern) {
  for (const char* pattern : {"cl100k", "gpt2", "o200k"}) {
    const Splitter fast(pattern), reference(pattern, Splitter::Way::pattern);
    Draws draws(pattern);
    for (int i = 0; i < 20000; ++i) {
      const std::string text = random_text(draws);
      ASSERT_EQ(pieces(fast, text), pieces(reference, text)) << pattern << ", text " << testing::PrintToString(text);
    }
    // Every string of up to four bytes from the characters that play a part.
    const std::string parts = " \n\r\tasltreA'1.\x01";
    for (size_t length = 1, count = parts.size(); length <= 4; ++length, count *= parts.size()) {
      for (size_t code = 0; code < count; ++code) {
        std::string text;
        for (size_t rest = code; text.size() < length; rest /= parts.size()) text += parts[rest % parts.size()];
        ASSERT_EQ(pieces(fast, text), pieces(reference, text)) << pattern << ", text " << testing::PrintToString(text);
      }
    }
    const std::string source = read_file(std::filesystem::path(TRIREME_SOURCE_DIR) / "src/data/split.cpp");
    EXPECT_EQ(pieces(fast, source), pieces(reference, source)) << pattern;
    const std::string english = synthetic_document(5, 1);
    EXPECT_EQ(pieces(fast, english), pieces(reference, english)) << pattern;
  }
}

TEST(Split, PiecesMakeTheText) {
  Draws draws("pieces make the text");
  for (const char* pattern : {"cl100k", "gpt2", "o200k", "b+|[^a]{2}", "\\bx|(?=a)"}) {
    const Splitter splitter(pattern);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = i % 2 == 0 ? random_bytes(draws, draws.below(60)) : random_text(draws);
      std::string joined;
      for (const std::string& piece : pieces(splitter, text)) {
        ASSERT_FALSE(piece.empty());
        joined += piece;
      }
      ASSERT_EQ(joined, text) << pattern;
    }
  }
}

TEST(Split, ExpressionOfANamedPatternIsThatPattern) {
  for (const char* pattern : {"cl100k", "gpt2", "o200k"}) {
    const Splitter named(pattern), spelled(named.expression());
    EXPECT_EQ(spelled.expression(), named.expression());
    EXPECT_TRUE(spelled.cuts_between_letter_and_space()) << pattern;
    EXPECT_EQ(pieces(spelled, "\u180E it's 12345\n"), pieces(named, "\u180E it's 12345\n"));
  }
}

TEST(Split, CutsBetweenLetterAndSpace) {
  for (const char* pattern : {"cl100k", "gpt2", "o200k"}) {
    const Splitter splitter(pattern);
    Draws draws("cuts");
    for (int i = 0; i < 3000; ++i) {
      const std::string left = random_text(draws).append("q");
      std::string right(" ");
      right += random_text(draws);
      std::vector<std::string> parts = pieces(splitter, left);
      for (const std::string& piece : pieces(splitter, right)) parts.push_back(piece);
      ASSERT_EQ(pieces(splitter, left + right), parts) << pattern << ", text " << testing::PrintToString(left + right);
    }
  }
}

TEST(Split, BadPatterns) {
  EXPECT_THAT(input_error([] { Splitter("a(b"); }),
              HasSubstr("`a(b` is neither cl100k, gpt2, o200k nor a regular expression"));
  EXPECT_THAT(input_error([] { Splitter(""); }), HasSubstr("is empty"));
  EXPECT_THAT(input_error([] { Splitter("\xFF"); }), HasSubstr("UTF-8 error"));
  // A pattern that needs exponential time ends with a message.
  const std::string text(60, 'a');
  EXPECT_THAT(input_error([&] { pieces(Splitter("(a|a|aa)+[bc]"), text); }), HasSubstr("match limit"));
}

TEST(Split, ValidUtf8Prefix) {
  const std::vector<std::pair<std::string, size_t>> rows{
      {"", 0},
      {"plain", 5},
      {"\xC3\xA9", 2},
      {"\xC0\x80", 0},          // overlong
      {"\xC1\xBF", 0},          // overlong
      {"\xE0\x9F\xBF", 0},      // overlong
      {"\xE0\xA0\x80", 3},      // U+0800
      {"\xED\x9F\xBF", 3},      // U+D7FF
      {"\xED\xA0\x80", 0},      // a surrogate
      {"\xF0\x8F\xBF\xBF", 0},  // overlong
      {"\xF0\x90\x80\x80", 4},  // U+10000
      {"\xF4\x8F\xBF\xBF", 4},  // U+10FFFF
      {"\xF4\x90\x80\x80", 0},  // above it
      {"\xF5\x80\x80\x80", 0},
      {"\x80", 0},
      {"ab\xE4\xB8", 2},
      {"ab\xE4\xB8\xAD", 5},
      {"ab\xF0\x9F\x98", 2},
      {std::string(100, 'x') + "\xFF", 100},
      {std::string(31, 'x') + "\xE4\xB8\xAD" + std::string(40, 'y') + "\xC3", 74},
  };
  for (const auto& [text, expected] : rows)
    EXPECT_EQ(valid_utf8_prefix(text), expected) << testing::PrintToString(text);
}

}  // namespace
}  // namespace trireme::data
