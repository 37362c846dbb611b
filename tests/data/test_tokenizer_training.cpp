#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "data/bpe_trainer.h"
#include "test_tokenizer_helpers.h"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

/// Training as the header states it, everything counted anew for each merge.
std::vector<std::string> train_by_definition(const PieceCounts& counts, size_t tokens) {
  std::vector<std::string> ranks;
  for (int byte = 0; byte < 256; ++byte) ranks.emplace_back(1, static_cast<char>(byte));
  std::vector<std::pair<std::vector<int>, int64_t>> words;
  for (const auto& [piece, count] : counts.counts()) {
    words.emplace_back(std::vector<int>{}, count);
    for (const char c : piece) words.back().first.push_back(static_cast<unsigned char>(c));
  }
  while (ranks.size() < tokens) {
    std::map<std::pair<int, int>, int64_t> pairs;
    for (const auto& [word, count] : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) pairs[{word[i], word[i + 1]}] += count;
    }
    // max_element keeps the first of equals, and the map is in order of pairs.
    const auto best =
        std::max_element(pairs.begin(), pairs.end(), [](auto& a, auto& b) { return a.second < b.second; });
    if (best == pairs.end() || best->second < 2) break;
    const auto [left, right] = best->first;
    for (auto& [word, count] : words) {
      std::vector<int> merged;
      for (size_t i = 0; i < word.size(); ++i) {
        if (i + 1 < word.size() && word[i] == left && word[i + 1] == right) {
          merged.push_back(static_cast<int>(ranks.size()));
          ++i;
        } else {
          merged.push_back(word[i]);
        }
      }
      word = merged;
    }
    ranks.push_back(ranks[static_cast<size_t>(left)] + ranks[static_cast<size_t>(right)]);
  }
  return ranks;
}

std::vector<std::string> learned(const std::vector<std::string>& ranks) { return {ranks.begin() + 256, ranks.end()}; }

PieceCounts counts_of(const std::vector<std::pair<std::string, int64_t>>& pieces) {
  PieceCounts counts;
  for (const auto& [piece, count] : pieces) counts.add(piece, count);
  return counts;
}

TEST(Training, Rules) {
  struct Row {
    const char* name;
    std::vector<std::pair<std::string, int64_t>> pieces;
    std::vector<std::string> expected;
  };
  const std::vector<Row> rows{
      {"the most frequent first", {{"xy", 5}, {"ab", 3}}, {"xy", "ab"}},
      {"of equals the smaller left", {{"xy", 3}, {"ab", 3}}, {"ab", "xy"}},
      {"of equals the smaller right", {{"az", 3}, {"ab", 3}}, {"ab", "az"}},
      {"bytes are unsigned", {{"\xFFz", 3}, {"ab", 3}}, {"ab", "\xFFz"}},
      {"once is not enough", {{"ab", 1}, {"cd", 2}}, {"cd"}},
      {"positions overlap when counted", {{"aaa", 2}, {"bc", 3}}, {"aa", "bc", "aaa"}},
      {"merges do not overlap", {{"aaaa", 2}}, {"aa", "aaaa"}},
      {"nothing", {}, {}},
      {"single bytes only", {{"a", 100}}, {}},
      {"a merge takes from its neighbours", {{"abc", 4}, {"bc", 1}, {"bcd", 2}}, {"bc", "abc", "bcd"}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(learned(train_ranks(counts_of(row.pieces), 1000)), row.expected) << row.name;
    EXPECT_EQ(train_by_definition(counts_of(row.pieces), 1000), train_ranks(counts_of(row.pieces), 1000)) << row.name;
  }
}

TEST(Training, EqualsTheDefinition) {
  Draws draws("training equals the definition");
  for (int round = 0; round < 60; ++round) {
    PieceCounts counts;
    // Few letters, so that runs, overlaps and ties are frequent.
    const uint64_t letters = 1 + draws.below(4);
    for (uint64_t i = 1 + draws.below(30); i > 0; --i) {
      std::string piece(1 + draws.below(round % 3 == 0 ? 300 : 12), ' ');
      for (char& c : piece) c = static_cast<char>('a' + draws.below(letters));
      counts.add(piece, static_cast<int64_t>(1 + draws.below(3)));
    }
    ASSERT_EQ(train_ranks(counts, 330), train_by_definition(counts, 330)) << "round " << round;
  }
  PieceCounts english;
  const Splitter splitter("cl100k");
  Splitter::Scratch scratch;
  splitter.for_each_piece(synthetic_document(2, 2) + synthetic_document(2, 3), scratch,
                          [&](std::string_view piece) { english.add(piece); });
  EXPECT_EQ(train_ranks(english, 400), train_by_definition(english, 400));
}

TEST(Training, DoesNotDependOnThreadsOrOrder) {
  const TemporaryFolder folder;
  auto files = write_texts(folder.path(), 30);
  // One file of several blocks, so that it is cut; it has invalid bytes, and a block without a place to cut.
  std::string large;
  for (int i = 0; large.size() < (5u << 20); ++i) large += synthetic_document(4, i % 300) + "\xFF";
  large.append(9 << 20, '7');
  for (int i = 0; i < 100; ++i) large += synthetic_document(5, i);
  write_file_durably(folder.path() / "large", large);
  files.push_back(folder.path() / "large");
  TokenizerTraining options;
  options.vocab = 700;
  std::vector<std::string> hashes;
  for (const int threads : {1, 2, 3, 7}) {
    options.threads = threads;
    std::rotate(files.begin(), files.begin() + threads, files.end());
    const TrainedTokenizer trained = train_tokenizer(files, options);
    hashes.push_back(trained.tokenizer.hash());
    EXPECT_EQ(trained.files, 31);
  }
  EXPECT_THAT(hashes, testing::Each(hashes[0]));
}

TEST(Training, CountsOfALargeFileAreThoseOfItsPieces) {
  const TemporaryFolder folder;
  std::string large;
  for (int i = 0; large.size() < (9u << 20); ++i) large += synthetic_document(4, i % 300);
  write_file_durably(folder.path() / "large", large);
  const std::vector<std::filesystem::path> files{folder.path() / "large"};
  for (const char* pattern : {"cl100k", "gpt2", "[a-z]+"}) {
    const Splitter splitter(pattern);
    PieceCounts expected;
    Splitter::Scratch scratch;
    splitter.for_each_piece(large, scratch, [&](std::string_view piece) { expected.add(piece); });
    const PieceCounts counts = count_pieces(files, splitter, 2);
    EXPECT_EQ(counts.total(), expected.total()) << pattern;
    EXPECT_EQ(counts.counts(), expected.counts()) << pattern;
  }
}

TEST(Training, SpecialsAndSizes) {
  const TemporaryFolder folder;
  const auto files = write_texts(folder.path(), 5);
  TokenizerTraining options;
  options.vocab = 300;
  options.specials = {"<|pad|>", "<|endoftext|>"};
  options.pattern = "gpt2";
  const Tokenizer tokenizer = train_tokenizer(files, options).tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 300);
  EXPECT_EQ(tokenizer.token_bytes(298), "<|pad|>");
  EXPECT_EQ(tokenizer.end_of_text(), 299);
  options.specials = {"<|stop|>", "<|pad|>"};
  EXPECT_EQ(train_tokenizer(files, options).tokenizer.end_of_text(), 298);
  options.specials = {"<|endoftext|>"};
  options.vocab = 257;  // bytes and the end of text only
  EXPECT_EQ(train_tokenizer(files, options).tokenizer.vocab_size(), 257);
}

TEST(Training, BadInput) {
  const TemporaryFolder folder;
  const auto files = write_texts(folder.path(), 2);
  TokenizerTraining options;
  options.vocab = 256;
  options.threads = -1;
  options.pattern = "(";
  options.specials = {"a", "a"};
  EXPECT_THAT(input_error([&] { train_tokenizer({}, options); }),
              AllOf(HasSubstr("vocab = 256: it counts the 256 bytes and 2 special tokens, so it is at least 258"),
                    HasSubstr("threads = -1"), HasSubstr("the split pattern `(`"), HasSubstr("`a` is given twice"),
                    HasSubstr("no text files were given")));
  options = {};
  options.vocab = 100000;
  EXPECT_THAT(input_error([&] { train_tokenizer(files, options); }),
              AllOf(HasSubstr("and 100000 were asked for"), HasSubstr("or a vocabulary of at most")));
  const std::vector<std::filesystem::path> missing{files[0], folder.path() / "nowhere", folder.path()};
  EXPECT_THAT(input_error([&] { train_tokenizer(missing, {}); }),
              AllOf(HasSubstr("nowhere"), HasSubstr("Is a directory")));
}

TEST(Training, ListOfFiles) {
  const TemporaryFolder folder;
  const std::filesystem::path at = folder.path();
  make_directories(at / "texts" / "deep");
  make_directories(at / "texts" / ".hidden");
  make_directories(at / "empty");
  for (const char* name :
       {"texts/b.txt", "texts/a.txt", "texts/deep/c.md", "texts/.d", "texts/.hidden/e", "odd[1].txt"}) {
    write_file_durably(at / name, "x");
  }
  const auto list = [&](std::vector<std::string> inputs) {
    std::vector<std::string> names;
    for (std::string& input : inputs) input = (at / input).string();
    for (const auto& path : list_text_files(inputs)) names.push_back(path.lexically_relative(at).string());
    return names;
  };
  EXPECT_THAT(list({"texts"}), ElementsAre("texts/a.txt", "texts/b.txt", "texts/deep/c.md"));
  EXPECT_THAT(list({"texts/*.txt"}), ElementsAre("texts/a.txt", "texts/b.txt"));
  EXPECT_THAT(list({"texts/b.txt", "texts/./b.txt", "texts/"}),
              ElementsAre("texts/a.txt", "texts/b.txt", "texts/deep/c.md"));
  EXPECT_THAT(list({"odd[1].txt"}), ElementsAre("odd[1].txt"));
  EXPECT_THAT(list({"te*"}), ElementsAre("texts/a.txt", "texts/b.txt", "texts/deep/c.md"));
  EXPECT_THAT(input_error([&] {
                list({"empty", "nowhere", "*.no"});
              }),
              AllOf(ContainsRegex("folder .*/empty has no files to read"),
                    ContainsRegex("no file or folder .*/nowhere"), ContainsRegex("no file matches .*\\*\\.no")));
  EXPECT_THAT(input_error([&] { list({}); }), HasSubstr("no input"));
}

TEST(InputFiles, PatternsCrossFoldersOnlyWhenToldTo) {
  const TemporaryFolder folder;
  const std::filesystem::path at = folder.path();
  for (const char* name : {"a.txt", "x/b.txt", "x/y/c.txt", "x/y/z/d.txt", "x/y/e.md"}) {
    make_directories((at / name).parent_path());
    write_file_durably(at / name, "x");
  }
  const struct {
    const char* pattern;
    std::vector<std::string> found;
  } rows[] = {{"*.txt", {"a.txt"}},
              {"*/*.txt", {"x/b.txt"}},
              {"**/*.txt", {"a.txt", "x/b.txt", "x/y/c.txt", "x/y/z/d.txt"}},
              {"x/**/d.txt", {"x/y/z/d.txt"}},
              {"x/?/*.md", {"x/y/e.md"}},
              {"[wx]", {"x/b.txt", "x/y/c.txt", "x/y/e.md", "x/y/z/d.txt"}},
              {"x/y*", {"x/y/c.txt", "x/y/e.md", "x/y/z/d.txt"}}};
  for (const auto& row : rows) {
    std::vector<std::string> found;
    for (const InputFile& file : find_input_files(std::vector<std::string>{(at / row.pattern).string()}))
      found.push_back(file.path.lexically_relative(at).string());
    EXPECT_EQ(found, row.found) << row.pattern;
  }
}

TEST(InputFiles, LinksAreFollowedOnceAndWhatCannotBeReadIsNamed) {
  const TemporaryFolder folder;
  const std::filesystem::path at = folder.path();
  make_directories(at / "texts/deep");
  make_directories(at / "elsewhere");
  write_file_durably(at / "texts/a", "x");
  write_file_durably(at / "elsewhere/b", "x");
  std::filesystem::create_directory_symlink(at / "elsewhere", at / "texts/link");
  std::filesystem::create_directory_symlink(at / "texts", at / "texts/deep/loop");
  const auto names = [&](const std::filesystem::path& except) {
    std::vector<std::string> found;
    for (const InputFile& file : find_input_files(std::vector<std::string>{(at / "texts").string()}, except))
      found.push_back(file.name);
    return found;
  };
  EXPECT_THAT(names({}), ElementsAre("a", "link/b"));
  EXPECT_THAT(names(at / "elsewhere"), ElementsAre("a"));
  std::filesystem::create_symlink("itself", at / "texts/itself");
  std::filesystem::create_symlink("nothing", at / "texts/dangling");
  EXPECT_THAT(input_error([&] { names({}); }),
              AllOf(ContainsRegex("texts/itself: Too many levels"), ContainsRegex("texts/dangling")));
}

TEST(SyntheticText, IsAFunctionOfSeedAndIndex) {
  EXPECT_EQ(synthetic_document(1, 0), synthetic_document(1, 0));
  EXPECT_NE(synthetic_document(1, 0), synthetic_document(1, 1));
  EXPECT_NE(synthetic_document(1, 0), synthetic_document(2, 0));
  size_t bytes = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const std::string text = synthetic_document(1, i);
    bytes += text.size();
    for (const char c : text) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << i;
    ASSERT_EQ(text.find("  "), std::string::npos) << text;
    ASSERT_EQ(text.back(), '\n');
  }
  EXPECT_GT(bytes, 100u * 1500);
  EXPECT_LT(bytes, 100u * 3000);
}

TEST(SyntheticText, Writes) {
  const TemporaryFolder folder;
  write_synthetic_text(folder.path() / "text", 3, 8);
  EXPECT_EQ(read_file(folder.path() / "text" / "00002.txt"), synthetic_document(8, 2));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "text" / "00003.txt"));
}

}  // namespace
}  // namespace trireme::data
