#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "test_tokenizer_helpers.h"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::filesystem::path ranks_of(const std::filesystem::path& folder) { return folder / "tokenizer.tiktoken"; }
std::filesystem::path manifest_of(const std::filesystem::path& folder) { return folder / "manifest.json"; }

void replace(const std::filesystem::path& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  write_file_durably(path, text.replace(at, from.size(), to));
}

TEST(TokenizerFile, ComesBackAsItWas) {
  const TemporaryFolder folder;
  const Tokenizer& tokenizer = small_tokenizer();
  tokenizer.save(folder.path() / "a" / "b");
  const Tokenizer loaded = Tokenizer::load(folder.path() / "a" / "b");
  EXPECT_EQ(loaded.hash(), tokenizer.hash());
  EXPECT_EQ(loaded.parts().ranks, tokenizer.parts().ranks);
  EXPECT_EQ(loaded.parts().pattern, tokenizer.parts().pattern);
  EXPECT_EQ(loaded.vocab_size(), 600);
  EXPECT_EQ(loaded.end_of_text(), 599);
  const std::string text = synthetic_document(1, 2);
  EXPECT_EQ(encode(loaded, text), encode(tokenizer, text));
}

TEST(TokenizerFile, HashTellsEveryPart) {
  const TokenizerParts parts = small_tokenizer().parts();
  std::vector<std::string> hashes{small_tokenizer().hash()};
  const std::vector<std::function<void(TokenizerParts&)>> changes{
      [](TokenizerParts& p) { std::swap(p.ranks[0], p.ranks[1]); },
      [](TokenizerParts& p) { p.ranks.pop_back(); },
      [](TokenizerParts& p) { p.pattern = "gpt2"; },
      [](TokenizerParts& p) { p.specials.push_back({"<|pad|>"}); },
      [](TokenizerParts& p) { p.specials = {{p.end_of_text = "<|end|>"}}; },
  };
  for (const auto& change : changes) {
    TokenizerParts changed = parts;
    change(changed);
    hashes.push_back(Tokenizer(changed).hash());
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    EXPECT_EQ(hashes[i].size(), 32u);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(hashes[i], hashes[j]) << i << " and " << j;
  }
}

struct Damage {
  const char* name;
  std::function<void(const std::filesystem::path&)> damage;
  std::vector<std::string> expected;
};

TEST(TokenizerFile, DamageIsNamed) {
  const std::vector<Damage> rows{
      {"no rank file", [](const auto& f) { std::filesystem::remove(ranks_of(f)); }, {"tokenizer.tiktoken is missing"}},
      {"nothing",
       [](const auto& f) {
         std::filesystem::remove(ranks_of(f));
         std::filesystem::remove(manifest_of(f));
       },
       {"manifest.json is missing. A run", "tokenizer.tiktoken is missing"}},
      {"base64",
       [](const auto& f) { replace(ranks_of(f), "Ag== 2\n", "Ag= 2\n"); },
       {"tokenizer.tiktoken:3: `Ag=` is not base64"}},
      {"two faults",
       [](const auto& f) {
         replace(ranks_of(f), "Ag== 2\n", "A?== 2\n");
         replace(ranks_of(f), "CA== 8\n", "CA== x\n");
       },
       {"tokenizer.tiktoken:3: `A?==` is not base64", "tokenizer.tiktoken:9: `x` is not a rank"}},
      {"rank twice",
       [](const auto& f) { replace(ranks_of(f), "Ag== 2\n", "Ag== 1\n"); },
       {"tokenizer.tiktoken:3: rank 1 is already that of line 2", "there is no rank 2"}},
      {"gap",
       [](const auto& f) { replace(ranks_of(f), "Ag== 2\n", ""); },
       {"there is no rank 2, and the ranks go up to 598"}},
      {"far rank",
       [](const auto& f) { replace(ranks_of(f), " 598\n", " 99999999999\n"); },
       {"rank 99999999999 leaves a gap"}},
      {"empty", [](const auto& f) { write_file_durably(ranks_of(f), ""); }, {"holds no ranks"}},
      {"cut at a line",
       [](const auto& f) {
         const std::string text = read_file(ranks_of(f));
         write_file_durably(ranks_of(f), text.substr(0, text.find(" 300\n") + 5));
       },
       {"hash is"}},
      {"cut in a line",
       [](const auto& f) {
         const std::string text = read_file(ranks_of(f));
         write_file_durably(ranks_of(f), text.substr(0, text.find(" 300\n")));
       },
       {"tokenizer.tiktoken:301: `` is not a rank"}},
      {"other ranks",
       [](const auto& f) {
         replace(ranks_of(f), "AQ== 1\n", "Ag== 1\n");
         replace(ranks_of(f), "Ag== 2\n", "AQ== 2\n");
       },
       {"hash is", "one of them was changed, or comes from another tokenizer"}},
      {"other pattern", [](const auto& f) { replace(manifest_of(f), "{1,3}", "{1,2}"); }, {"hash is"}},
      {"vocab_size",
       [](const auto& f) { replace(manifest_of(f), "600", "601"); },
       {"vocab_size is 601, but 599 ranks and 1 specials need 600"}},
      {"special id",
       [](const auto& f) { replace(manifest_of(f), "\"id\": 599", "\"id\": 7"); },
       {"vocab_size is 600, but 599 ranks and 1 specials need 599", "hash is"}},
      {"not JSON", [](const auto& f) { write_file_durably(manifest_of(f), "{"); }, {"is not a JSON object"}},
      {"other format",
       [](const auto& f) { replace(manifest_of(f), "trireme-tokenizer", "x"); },
       {"is not a tokenizer's manifest"}},
      {"other version",
       [](const auto& f) { replace(manifest_of(f), "\"version\": 1", "\"version\": 2"); },
       {"has version 2; this program reads version 1"}},
      {"key left out",
       [](const auto& f) { replace(manifest_of(f), "\"end_of_text\"", "\"x\""); },
       {"key 'end_of_text' not found"}},
  };
  for (const Damage& row : rows) {
    const TemporaryFolder folder;
    small_tokenizer().save(folder.path());
    row.damage(folder.path());
    const std::string message = input_error([&] { Tokenizer::load(folder.path()); });
    for (const std::string& expected : row.expected) EXPECT_THAT(message, HasSubstr(expected)) << row.name;
  }
}

TEST(TokenizerFile, ManyFaultsAreCutOff) {
  const TemporaryFolder folder;
  small_tokenizer().save(folder.path());
  std::string lines;
  for (int i = 0; i < 500; ++i) lines += "???\n";
  write_file_durably(ranks_of(folder.path()), lines);
  const std::string message = input_error([&] { Tokenizer::load(folder.path()); });
  EXPECT_THAT(message, HasSubstr("and 481 more faults"));
  EXPECT_LT(std::count(message.begin(), message.end(), '\n'), 30);
}

TEST(TokenizerFile, PartsThatMakeNoTokenizer) {
  TokenizerParts parts = small_tokenizer().parts();
  parts.pattern = "(";
  parts.ranks[65] = "zz";
  parts.ranks[66] = "";
  parts.ranks[70] = parts.ranks[71];
  parts.specials = {{"<|a|>"}, {"<|a|>"}, {""}, {"\xFF"}};
  EXPECT_THAT(input_error([&] { Tokenizer{parts}; }),
              AllOf(HasSubstr("the split pattern `(`"), HasSubstr("tokens 70 and 71 have the same bytes"),
                    HasSubstr("3 of the 256 single bytes are no tokens (the first is 0x41)"),
                    HasSubstr("`<|a|>` is given twice"), HasSubstr("special token 2 is empty"),
                    HasSubstr("special token 3 is not UTF-8"),
                    HasSubstr("the end of text `<|endoftext|>` is not one of the special tokens")));
}

}  // namespace
}  // namespace trireme::data
