#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <thread>

#include "data/bpe_merge.h"
#include "data/split.h"
#include "test_tokenizer_helpers.h"

namespace trireme::data {
namespace {

using testing::HasSubstr;

/// BPE as its definition says: merge the pair of lowest rank, leftmost first, until none is left.
std::vector<int32_t> merge_by_definition(const std::map<std::string, int32_t>& ranks, std::string_view piece) {
  if (const auto whole = ranks.find(std::string(piece)); whole != ranks.end()) return {whole->second};
  std::vector<std::string> parts;
  for (const char byte : piece) parts.emplace_back(1, byte);
  for (;;) {
    size_t best = parts.size();
    int32_t lowest = INT32_MAX;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + parts[i + 1]);
      if (found != ranks.end() && found->second < lowest) {
        lowest = found->second;
        best = i;
      }
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(ranks.at(part));
  return ids;
}

std::map<std::string, int32_t> rank_map(const std::vector<std::string>& ranks) {
  std::map<std::string, int32_t> map;
  for (size_t id = 0; id < ranks.size(); ++id) map[ranks[id]] = static_cast<int32_t>(id);
  return map;
}

TEST(Encode, EqualsTheDefinition) {
  const Tokenizer& tokenizer = small_tokenizer();
  const auto ranks = rank_map(tokenizer.parts().ranks);
  const Splitter splitter("cl100k", Splitter::Way::pattern);
  Splitter::Scratch scratch;
  Draws draws("encode equals the definition");
  for (int i = 0; i < 3000; ++i) {
    std::string text = i % 3 == 0 ? random_bytes(draws, draws.below(80)) : random_text(draws);
    if (i % 3 == 2) text += synthetic_document(9, i).substr(draws.below(200), draws.below(200));
    std::vector<int32_t> expected;
    splitter.for_each_piece(text, scratch, [&](std::string_view piece) {
      const auto ids = merge_by_definition(ranks, piece);
      expected.insert(expected.end(), ids.begin(), ids.end());
    });
    ASSERT_EQ(encode(tokenizer, text), expected) << testing::PrintToString(text);
  }
}

TEST(Encode, MergesOfEveryLengthEqualTheDefinition) {
  // Tokens that overlap in many ways, and pieces on both sides of the change from the scan to the heap.
  std::vector<std::string> ranks;
  for (int byte = 255; byte >= 0; --byte) ranks.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"aa", "ab", "ba", "aab", "bb", "abba", "aaaa", "bab", "bbbb", "aba", "abab"})
    ranks.emplace_back(token);
  const MergeTable table(ranks);
  const auto map = rank_map(ranks);
  Draws draws("merges of every length");
  for (size_t size = 1; size < 300; ++size) {
    std::string piece(size, 'a');
    if (size % 4 != 0) {
      for (char& c : piece) c = draws.below(3) == 0 ? 'b' : 'a';
    }
    std::vector<int32_t> ids;
    table.encode_piece(piece, ids);
    ASSERT_EQ(ids, merge_by_definition(map, piece)) << piece;
  }
}

TEST(Encode, RoundTrips) {
  const Tokenizer& tokenizer = small_tokenizer();
  Draws draws("round trips");
  for (int i = 0; i < 2000; ++i) {
    const std::string text = i % 2 == 0 ? random_bytes(draws, draws.below(200)) : random_text(draws);
    const std::vector<int32_t> ids = encode(tokenizer, text);
    ASSERT_EQ(tokenizer.decode(ids), text) << testing::PrintToString(text);
    ASSERT_EQ(encode(tokenizer, text), ids) << "a second time, now from the cache";
  }
  EXPECT_TRUE(encode(tokenizer, "").empty());
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    EXPECT_EQ(encode(tokenizer, text), std::vector<int32_t>{byte});
  }
}

TEST(Encode, AppendsAndDoesNotDependOnWhatStandsBehindTheText) {
  const Tokenizer& tokenizer = small_tokenizer();
  const std::string text = "The captain opened the door of the old harbour";
  for (size_t length = 0; length <= text.size(); ++length) {
    std::vector<int32_t> ids{7};
    tokenizer.encode(std::string_view(text).substr(0, length), ids);
    const std::string copy = text.substr(0, length);  // nothing behind it but its end
    std::vector<int32_t> alone = encode(tokenizer, std::string(copy.begin(), copy.end()));
    alone.insert(alone.begin(), 7);
    EXPECT_EQ(ids, alone) << length;
  }
}

TEST(Encode, LongPiecesAreNotQuadratic) {
  const Tokenizer& tokenizer = small_tokenizer();
  const std::vector<std::pair<std::string, std::string>> rows{{"letters", std::string(1 << 20, 'a')},
                                                              {"spaces", std::string(1 << 20, ' ')},
                                                              {"newlines", std::string(1 << 20, '\n')},
                                                              {"punctuation", std::string(1 << 20, '-')},
                                                              {"invalid", std::string(1 << 20, '\xFF')}};
  for (const auto& [name, text] : rows) {
    const std::clock_t start = std::clock();
    EXPECT_EQ(tokenizer.decode(encode(tokenizer, text)), text) << name;
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 20) << name;  // a quadratic way takes hours
  }
  std::string wide;
  for (int i = 0; i < 300000; ++i) wide += "\u00E9";
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, wide)), wide);
}

TEST(Encode, SpecialsAreNotRecognisedInText) {
  const Tokenizer& tokenizer = small_tokenizer();
  const std::vector<int32_t> ids = encode(tokenizer, "<|endoftext|>");
  EXPECT_GT(ids.size(), 1u);
  for (const int32_t id : ids) EXPECT_FALSE(tokenizer.is_special(id));
  EXPECT_EQ(tokenizer.end_of_text(), 599);
  EXPECT_TRUE(tokenizer.is_special(599));
  EXPECT_FALSE(tokenizer.is_special(600));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{'a', 599}), "a<|endoftext|>");
}

TEST(Encode, UnknownIdsAreRefused) {
  const Tokenizer& tokenizer = small_tokenizer();
  for (const int32_t id : {-1, 600, INT32_MAX, INT32_MIN}) {
    EXPECT_THAT(input_error([&] {
                  tokenizer.decode(std::vector<int32_t>{1, id});
                }),
                HasSubstr(fmt::format("token id {} is not in the vocabulary of 600 tokens (0 to 599)", id)));
  }
}

TEST(Encode, ManyThreadsAndTokenizersAtOnce) {
  const Tokenizer& one = small_tokenizer();
  TokenizerParts parts = one.parts();
  parts.ranks.resize(300);
  const Tokenizer other(parts);
  const std::string text = synthetic_document(11, 4);
  const auto expected_one = encode(one, text), expected_other = encode(other, text);
  EXPECT_NE(expected_one, expected_other);
  std::vector<int> wrong(4);
  {
    std::vector<std::jthread> threads;
    for (int& mine : wrong) {
      threads.emplace_back([&] {
        for (int i = 0; i < 10; ++i) mine += encode(one, text) != expected_one || encode(other, text) != expected_other;
      });
    }
  }
  EXPECT_THAT(wrong, testing::Each(0));
}

}  // namespace
}  // namespace trireme::data
