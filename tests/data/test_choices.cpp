// Questions and choices as token ids. Catches: a split at the wrong token, white space on the wrong side, an answer
// read as another one, a fault that hides the next.
#include "data/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test_tokenizer_helpers.h"

namespace trireme::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Bytes, and three merges that reach over what a question and a choice are joined by.
Tokenizer merging(const std::string& pattern = "cl100k") {
  TokenizerParts parts;
  parts.pattern = pattern;
  for (int byte = 0; byte < 256; ++byte) parts.ranks.emplace_back(1, static_cast<char>(byte));
  for (const char* merged : {" a", "?\n", "? a"}) parts.ranks.emplace_back(merged);
  parts.specials = {{"<|endoftext|>", -1}};
  parts.end_of_text = "<|endoftext|>";
  return Tokenizer(parts);
}

TEST(Choices, Join) {
  const Tokenizer tokenizer = merging();
  const struct {
    const char* name;
    std::string context, continuation;
    int64_t longest;
    std::string before;  ///< text of the tokens that are not scored
    std::string scored;
    int64_t tokens;  ///< scored ones
  } rows[] = {
      {"plain", "Q?", " a", 64, "Q?", " a", 1},
      {"spaces move", "Q?  ", " a", 64, "Q?", "   a", 3},
      {"a newline moves, is merged with the question and lost", "Q?\n", " a", 64, "Q?", " a", 1},
      {"white space of Unicode moves", "Q\u3000\u00a0\n", " a", 64, "Q", "\u3000\u00a0\n a", 7},
      {"no white space: a zero-width space", "Q\u200b", " a", 64, "Q\u200b", " a", 1},
      {"white space inside stays", "a\n b", " a", 64, "a\n b", " a", 1},
      {"empty", "", " a", 64, "<|endoftext|>", " a", 1},
      {"nothing but white space", " \n", " a", 64, "<|endoftext|>", " \n a", 3},
      {"as long as the model", "abc", " a", 3, "abc", " a", 1},
      {"one too long", "xabc", " a", 3, "abc", " a", 1},
      {"much too long", "xxxxxxabc", " abc", 3, "c", " abc", 3},
      {"special tokens are text", "<|endoftext|>", " a", 64, "<|endoftext|>", " a", 1},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    const ScoredText text = join(tokenizer, row.context, row.continuation, row.longest);
    const std::span<const int32_t> tokens = text.tokens;
    ASSERT_EQ(text.scored, row.tokens);
    ASSERT_LE(text.scored, static_cast<int64_t>(tokens.size()));
    const size_t split = tokens.size() - static_cast<size_t>(text.scored);
    EXPECT_EQ(tokenizer.decode(tokens.first(split)), row.before);
    EXPECT_EQ(tokenizer.decode(tokens.subspan(split)), row.scored);
  }
  // The token, and the thirteen characters of the text that looks like it.
  EXPECT_EQ(join(tokenizer, "", " a", 64).tokens.size(), 2U);
  EXPECT_EQ(join(tokenizer, "<|endoftext|>", " a", 64).tokens.size(), 14U);
}

TEST(Choices, Lines) {
  const std::string text = R"({"question": "Q?", "choices": ["a", "bc"], "answer": 1, "id": 7})"
                           "\r\n  \n"
                           R"({"question": "", "choices": ["\u00e9", "B", "b"], "answer": "B"})";
  const std::vector<Question> questions = parse_choices(text, "f.jsonl", merging(), 64);
  ASSERT_EQ(questions.size(), 2U);
  EXPECT_EQ(questions[0].line, 1);
  EXPECT_EQ(questions[1].line, 3);
  EXPECT_EQ(questions[0].answer, 1);
  EXPECT_EQ(questions[1].answer, 1);
  ASSERT_EQ(questions[1].choices.size(), 3U);
  EXPECT_EQ(questions[1].choices[0].bytes, 2);
  EXPECT_EQ(questions[1].choices[0].text.scored, 3);  // the space, and two bytes
  EXPECT_THAT(questions[0].choices[0].text.tokens, ElementsAre('Q', '?', 256));
}

std::string line_of(const std::string& choices, const std::string& answer) {
  return "{\"question\":\"Q?\",\"choices\":" + choices + ",\"answer\":" + answer + "}";
}

TEST(Choices, Answers) {
  const struct {
    std::string choices, answer;
    int64_t index;
  } rows[] = {
      {R"(["x","y","z"])", "0", 0},      {R"(["x","y","z"])", "2", 2},      {R"(["x","y","z"])", R"("A")", 0},
      {R"(["x","y","z"])", R"("C")", 2}, {R"(["x","y","z"])", R"("y")", 1}, {R"(["A","B","C"])", R"("B")", 1},
      {R"(["x","x","z"])", R"("z")", 2}, {R"(["E","y"])", R"("E")", 0},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.choices + " " + row.answer);
    EXPECT_EQ(parse_choices(line_of(row.choices, row.answer), "f", merging(), 64).at(0).answer, row.index);
  }
}

std::vector<std::string> faults_of(const std::string& text, const Tokenizer& tokenizer = merging()) {
  try {
    parse_choices(text, "f", tokenizer, 8);
  } catch (const InputError& error) {
    return error.faults();
  }
  return {};
}

TEST(Choices, Faults) {
  const struct {
    const char* name;
    std::string line, fault;
  } rows[] = {
      {"no JSON", "{", R"(f:1: this is no JSON object; expected {"question": "...", )"},
      {"a list", "[1]", "f:1: this is no JSON object"},
      {"not UTF-8", "{\"question\":\"\xff\",\"choices\":[\"a\",\"b\"],\"answer\":0}",
       "f:1: byte 14 of the line is not UTF-8"},
      {"no question", R"({"choices":["a","b"],"answer":0})", "f:1: question is missing"},
      {"no choices", R"({"question":"Q","answer":0})", "f:1: choices is missing"},
      {"no answer", R"({"question":"Q","choices":["a","b"]})", "f:1: answer is missing"},
      {"question is a number", R"({"question":1,"choices":["a","b"],"answer":0})", "question has to be a text"},
      {"choices are a text", line_of("\"ab\"", "0"), "choices has to be a list of at least two texts"},
      {"choices are numbers", line_of("[1,2]", "0"), "choices has to be a list of at least two texts"},
      {"one choice", line_of("[\"a\"]", "0"), "choices has to be a list of at least two texts"},
      {"an empty choice", line_of(R"(["a",""])", "0"), "choice 1 is empty"},
      {"answer after the last", line_of(R"(["a","b"])", "2"), "answer = 2, but the 2 choices are 0 to 1"},
      {"answer below 0", line_of(R"(["a","b"])", "-1"), "answer = -1, but the 2 choices are 0 to 1"},
      {"a huge answer", line_of(R"(["a","b"])", "18446744073709551615"), "answer = 18446744073709551615, but"},
      {"answer is a fraction", line_of(R"(["a","b"])", "1.0"), "answer = 1.0: expected an index from 0, a letter"},
      {"answer is null", line_of(R"(["a","b"])", "null"), "answer = null: expected an index"},
      {"letter after the last", line_of(R"(["a","b"])", R"("C")"), R"("C" is neither a letter from "A" to "B" nor)"},
      {"small letter", line_of(R"(["x","y"])", R"("a")"), R"("a" is neither a letter from "A" to "B" nor)"},
      {"a number as text", line_of(R"(["x","y"])", R"("1")"), R"("1" is neither a letter from "A" to "B" nor)"},
      {"text of two choices", line_of(R"(["x","x"])", R"("x")"), "is the text of several choices; give the index"},
      {"letter and text", line_of(R"(["B","A"])", R"("A")"), "is the letter of choice 0 and the text of choice 1"},
      {"a choice longer than the model", line_of(R"(["a","bcdefghijk"])", "0"),
       "choice 1 has 11 tokens, and the model's longest sequence is 8"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(faults_of(row.line), ElementsAre(HasSubstr(row.fault)));
  }
  // A pattern that does not cut at the space lets a merge swallow the choice.
  EXPECT_THAT(faults_of(line_of(R"(["a","b"])", "0"), merging("[\\s\\S]+")),
              ElementsAre(HasSubstr("choice 0 has no token")));
  EXPECT_THAT(faults_of(""), ElementsAre(HasSubstr("f has no question")));
  EXPECT_THAT(faults_of("\n\n"), ElementsAre(HasSubstr("f has no question")));
}

TEST(Choices, AllBadLinesAtOnceButNotMoreThanTwenty) {
  const std::string good = line_of(R"(["a","b"])", "0");
  std::string text = good + "\n1\n\n" + good + "\n2\n";
  EXPECT_THAT(faults_of(text), ElementsAre(HasSubstr("f:2: "), HasSubstr("f:5: ")));
  for (int i = 0; i < 30; ++i) text += "3\n";
  const std::vector<std::string> faults = faults_of(text);
  ASSERT_EQ(faults.size(), 21U);
  EXPECT_THAT(faults[19], HasSubstr("f:23: "));
  EXPECT_EQ(faults[20], "12 more lines of f are wrong");
}

TEST(Choices, PackedFileIsRefused) { EXPECT_THROW(read_choices("questions.jsonl.gz", merging(), 8), InputError); }

}  // namespace
}  // namespace trireme::data
