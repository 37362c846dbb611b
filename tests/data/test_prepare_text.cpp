// Bytes that are not UTF-8, documents inside files, patterns of paths. Expected values of `replace` are those of
// Python's bytes.decode("utf-8", errors="replace").
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/input_files.h"
#include "data/prepare_text.h"

namespace trireme::data {
namespace {

#define REPLACED "\xEF\xBF\xBD"

TEST(PrepareText, FindsAndReplacesWhatIsNotUtf8) {
  struct Row {
    const char* name;
    std::string text;
    size_t invalid_at;
    std::string replaced;
  };
  const size_t none = std::string_view::npos;
  const std::vector<Row> rows{
      {"empty", "", none, ""},
      {"ascii, longer than a word", "hello, world; 0123456789", none, "hello, world; 0123456789"},
      {"two, three, four bytes", "é€\xF0\x9F\x98\x80", none, "é€\xF0\x9F\x98\x80"},
      {"latin-1", "caf\xE9 au lait", 3, "caf" REPLACED " au lait"},
      {"lone continuation", "a\x80", 1, "a" REPLACED},
      {"cut at the end, three bytes", "abcdefgh\xE2\x82", 8, "abcdefgh" REPLACED},
      {"cut in the middle", "\xE2\x82z", 0, REPLACED "z"},
      {"overlong slash", "\xC0\xAF", 0, REPLACED REPLACED},
      {"overlong three bytes", "\xE0\x80\xAF", 0, REPLACED REPLACED REPLACED},
      {"surrogate", "\xED\xA0\x80", 0, REPLACED REPLACED REPLACED},
      {"last before the surrogates", "\xED\x9F\xBF", none, "\xED\x9F\xBF"},
      {"above U+10FFFF", "\xF4\x90\x80\x80", 0, REPLACED REPLACED REPLACED REPLACED},
      {"U+10FFFF", "\xF4\x8F\xBF\xBF", none, "\xF4\x8F\xBF\xBF"},
      {"four bytes cut after three", "\xF0\x9F\x98!", 0, REPLACED "!"},
      {"FE and FF", "\xFE\xFF", 0, REPLACED REPLACED},
      {"zero byte is valid", std::string("a\0b", 3), none, std::string("a\0b", 3)},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(find_invalid_utf8(row.text), row.invalid_at) << row.name;
    EXPECT_EQ(replace_invalid_utf8(row.text), row.replaced) << row.name;
  }
}

TEST(PrepareText, SeparatesDocumentsAtWholeLines) {
  struct Row {
    const char* name;
    std::string file;
    std::string separator;
    std::vector<std::string> documents;
  };
  const std::vector<Row> rows{
      {"no separator", "a\n--\nb", "", {"a\n--\nb"}},
      {"lines", "a\n--\nb\n", "--", {"a\n", "b\n"}},
      {"at the start", "--\nb", "--", {"", "b"}},
      {"at the end, no newline", "a\n--", "--", {"a\n"}},
      {"carriage returns", "a\r\n--\r\nb", "--", {"a\r\n", "b"}},
      {"within a line is none", "a -- b\n--c\nd--\n", "--", {"a -- b\n--c\nd--\n"}},
      {"two in a row", "a\n--\n--\nb", "--", {"a\n", "", "b"}},
  };
  for (const Row& row : rows) {
    std::vector<std::string> documents;
    for (size_t at = 0; at < row.file.size();) {
      const TextRange range = next_document(row.file, at, row.separator);
      documents.push_back(row.file.substr(range.begin, range.end - range.begin));
      ASSERT_GT(range.next, at) << row.name;
      at = range.next;
    }
    EXPECT_EQ(documents, row.documents) << row.name;
  }
}

TEST(PrepareText, NamesOfTheInvalidUtf8Option) {
  for (const char* name : {"keep", "replace", "drop", "error"}) EXPECT_EQ(name_of(invalid_utf8_from_name(name)), name);
  EXPECT_THROW(invalid_utf8_from_name("ignore"), InputError);
}

TEST(PrepareInputs, GlobMatch) {
  struct Row {
    const char* pattern;
    const char* path;
    bool matches;
  };
  const std::vector<Row> rows{
      {"a.txt", "a.txt", true},
      {"*.txt", "a.txt", true},
      {"*.txt", "b/a.txt", false},
      {"**/*.txt", "a.txt", true},
      {"**/*.txt", "b/c/a.txt", true},
      {"**/*.txt", "b/c/a.md", false},
      {"b/**", "b/c/d", true},
      {"199[1-9]*", "1991.txt", true},
      {"199[1-9]*", "1990.txt", false},
      {"[!a]x", "bx", true},
      {"[!a]x", "ax", false},
      {"a?c", "abc", true},
      {"a?c", "a/c", false},
      {"*", "", true},
      {"", "a", false},
      {"20[0-9][0-9]-*", "2001-x", true},
  };
  for (const Row& row : rows)
    EXPECT_EQ(glob_match(row.pattern, row.path), row.matches) << row.pattern << " on " << row.path;
}

}  // namespace
}  // namespace trireme::data
