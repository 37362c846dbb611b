// Shards: reading across their borders, and damage that is named.
#include <gmock/gmock.h>

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "data/inspect.h"
#include "data/loader.h"
#include "data/shard.h"
#include "data_fixture.h"

namespace trireme::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DatasetTest : public DataTest {
 protected:
  static std::map<std::string, std::string> texts(int count, int64_t bytes) {
    std::map<std::string, std::string> texts;
    for (int i = 0; i < count; ++i) texts[fmt::format("{:03}.txt", i)] = some_text(static_cast<uint64_t>(i), bytes + i);
    return texts;
  }
  std::vector<int32_t> expected(const std::map<std::string, std::string>& texts) const {
    std::vector<std::string> list;
    for (const auto& [name, text] : texts) list.push_back(text);
    return expected_stream(list);
  }
};

TEST_F(DatasetTest, ReadsAcrossShardBorders) {
  const auto corpus = texts(7, 40);
  const auto want = expected(corpus);
  for (const int64_t shard_tokens : {1, 50, 100, 100000}) {
    std::filesystem::remove_all(path("out"));
    const auto set = dataset(corpus, shard_tokens);
    EXPECT_EQ(set->manifest().shards.size(), shard_tokens == 1        ? 7u
                                             : shard_tokens == 100000 ? 1u
                                                                      : set->manifest().shards.size());
    ASSERT_EQ(stream(*set), want) << shard_tokens;
    const auto total = static_cast<int64_t>(want.size());
    for (int64_t begin = 0; begin < total; ++begin) {
      for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{60}, total - begin}) {
        if (begin + count > total) continue;
        std::vector<int32_t> got(static_cast<size_t>(count));
        set->copy_tokens(begin, got);
        ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin() + begin)) << begin << " + " << count;
      }
    }
    int64_t position = 0;
    int64_t text_bytes = 0;
    for (int64_t i = 0; i < set->document_count(); ++i) {
      const Document document = set->document(i);
      EXPECT_EQ(document.first_token, position);
      EXPECT_EQ(document.name, fmt::format("{:03}.txt", i));
      EXPECT_EQ(document.text_bytes, static_cast<int64_t>(corpus.at(document.name).size()));
      EXPECT_EQ(set->document_of_token(position), i);
      EXPECT_EQ(set->document_of_token(position + document.tokens - 1), i);
      position += document.tokens;
      text_bytes += document.text_bytes;
    }
    EXPECT_EQ(position, total);
    EXPECT_EQ(text_bytes, set->text_bytes());
  }
}

TEST_F(DatasetTest, FingerprintFollowsContentOnly) {
  const auto one = dataset(texts(3, 40))->fingerprint();
  std::filesystem::rename(path("out"), path("moved"));
  EXPECT_EQ(Dataset::open(path("moved"))->fingerprint(), one);
  write("001.txt", "other");
  EXPECT_NE(dataset({})->fingerprint(), one);
}

TEST_F(DatasetTest, WideIds) {
  // Shards with ids above 65535: written and read without a tokenizer of that size.
  ShardWriter writer(4);
  const std::vector<int32_t> ids{1, 70000, 100000, 9};
  writer.add({.first_token = 0,
              .text_bytes = 8,
              .text_hash_low = 1,
              .text_hash_high = 2,
              .token_hash = 0,
              .source_file = 0,
              .source_offset = 0,
              .source_bytes = 8,
              .name_offset = 0},
             "wide", ids);
  const ShardEntry entry = writer.write(path("wide.tokens"));
  const ShardFile shard(path("wide.tokens"), entry, 4);
  std::vector<int32_t> got(4);
  shard.copy_tokens(0, got);
  EXPECT_EQ(got, ids);
  EXPECT_TRUE(shard.verify(entry.checksum, 100001, 9).empty());
  EXPECT_THAT(shard.verify(entry.checksum, 100000, 9).at(0), HasSubstr("id 100000, and the vocabulary has 100000"));
  EXPECT_THAT(shard.verify(entry.checksum, 100001, 8).at(0), HasSubstr("not with end-of-text (8)"));
  EXPECT_THAT(fault_of([&] { ShardFile(path("wide.tokens"), entry, 2); }), HasSubstr("bytes an id"));
}

TEST_F(DatasetTest, EveryFlippedByteIsFoundAndNamed) {
  const auto corpus = texts(4, 60);
  const auto set = dataset(corpus, 60);
  ASSERT_GE(set->manifest().shards.size(), 2u);
  const ShardEntry shard = set->manifest().shards.at(1);
  const auto file = path("out") / shard.file;
  const Document first = set->document(set->manifest().shards.at(0).documents);
  for (int64_t at = 0; at < shard.bytes; ++at) {
    flip_byte(file, at);
    std::string said;
    try {
      const auto damaged = Dataset::open(path("out"));
      const auto faults = damaged->verify();
      for (const std::string& fault : faults) said += fault + "\n";
      const bool in_tokens = at >= 128 && at < 128 + shard.tokens * 2;
      if (in_tokens) {
        // The one document of that byte, in verify and when a token of its block is read.
        const int64_t token = first.first_token + (at - 128) / 2;
        const Document hit = set->document(set->document_of_token(token));
        EXPECT_EQ(faults.size(), 1u) << at;
        EXPECT_THAT(said, HasSubstr(hit.name)) << at;
        std::vector<int32_t> ids(1);
        EXPECT_THAT(fault_of([&] { damaged->copy_tokens(token, ids); }),
                    AllOf(HasSubstr(shard.file), HasSubstr(hit.name)))
            << at;
      }
    } catch (const InputError& error) {
      said = error.what();
    }
    EXPECT_THAT(said, HasSubstr(shard.file)) << "byte " << at;
    flip_byte(file, at);
  }
  EXPECT_TRUE(Dataset::open(path("out"))->verify().empty());
}

TEST_F(DatasetTest, DamageInOneBlockLeavesOthersReadable) {
  const auto set = dataset(texts(40, 5000));
  const ShardEntry shard = set->manifest().shards.at(0);
  ASSERT_GT(shard.bytes, 3 * shard_block_bytes);
  flip_byte(path("out") / shard.file, 128 + shard_block_bytes + 10);
  const auto damaged = Dataset::open(path("out"));
  std::vector<int32_t> ids(100);
  damaged->copy_tokens(0, ids);
  const int64_t token = (shard_block_bytes + 10) / 2;
  const std::string name = set->document(set->document_of_token(token)).name;
  for (int i = 0; i < 2; ++i) {  // a damaged block stays damaged
    EXPECT_THAT(fault_of([&] { damaged->copy_tokens(token - 50, ids); }),
                AllOf(HasSubstr(shard.file), HasSubstr(name)));
  }
  damaged->copy_tokens(token + shard_block_bytes, ids);
}

TEST_F(DatasetTest, StructureFaults) {
  const auto corpus = texts(4, 60);
  dataset(corpus, 60);
  const auto whole = tree(path("out"));
  const auto restore = [&] {
    for (const auto& [name, content] : whole) std::ofstream(path("out") / name, std::ios::binary) << content;
  };
  const auto rewrite = [&](const std::string& from, const std::string& to) {
    std::string text = whole.at("manifest.json");
    text.replace(text.find(from), from.size(), to);
    std::ofstream(path("out/manifest.json")) << text;
  };
  const auto size0 = whole.at("shard-00000.tokens").size();
  struct Row {
    const char* name;
    std::function<void()> damage;
    std::vector<std::string> said;
  };
  const std::vector<Row> rows{
      {"cut short",
       [&] { std::filesystem::resize_file(path("out/shard-00000.tokens"), size0 - 9); },
       {"shard-00000.tokens is cut short", fmt::format("{} bytes were expected", size0),
        fmt::format("{} found", size0 - 9)}},
      {"emptied", [&] { std::filesystem::resize_file(path("out/shard-00000.tokens"), 0); }, {"cut short", " 0 found"}},
      {"longer", [&] { std::filesystem::resize_file(path("out/shard-00000.tokens"), size0 + 1); }, {"too long"}},
      {"two at once",
       [&] {
         std::filesystem::remove(path("out/shard-00000.tokens"));
         std::filesystem::remove(path("out/shard-00001.tokens"));
       },
       {"shard-00000.tokens", "shard-00001.tokens", "2 problems"}},
      {"other shard of the same size",
       [&] { std::ofstream(path("out/shard-00000.tokens")) << std::string(size0, 'x'); },
       {"not a token shard"}},
      {"no manifest", [&] { std::filesystem::remove(path("out/manifest.json")); }, {"not prepared to the end"}},
      {"not a set",
       [&] {
         std::filesystem::remove(path("out/manifest.json"));
         std::filesystem::remove(path("out/prepare.json"));
       },
       {"is not prepared data", "trireme data prepare"}},
      {"manifest is no JSON", [&] { std::ofstream(path("out/manifest.json")) << "{"; }, {"manifest.json is damaged"}},
      {"manifest of another version",
       [&] { rewrite("\"version\": 1", "\"version\": 7"); },
       {"has version 7", "reads 1"}},
      {"a key is missing", [&] { rewrite("\"vocab_size\"", "\"vocab\""); }, {"vocab_size"}},
      {"a path as shard", [&] { rewrite("\"shard-00000.tokens\"", "\"../x\""); }, {"not a plain file name"}},
      {"other ids", [&] { rewrite("uint16", "uint32"); }, {"bytes an id"}},
  };
  for (const Row& row : rows) {
    restore();
    row.damage();
    const std::string message = fault_of([&] { Dataset::open(path("out")); });
    for (const std::string& part : row.said) EXPECT_THAT(message, HasSubstr(part)) << row.name;
  }
  EXPECT_THAT(fault_of([&] { Dataset::open(path("nowhere")); }), HasSubstr("does not exist"));
}

TEST_F(DatasetTest, Inspect) {
  const auto set = dataset({{"a", "the rain"}, {"b", "in Spain"}});
  EXPECT_THAT(describe(*set, 1),
              AllOf(HasSubstr("documents    2"), HasSubstr("shard-00000.tokens"), HasSubstr("... 1 more")));
  EXPECT_THAT(describe_document(*set, 1), AllOf(HasSubstr("in Spain<|endoftext|>"), HasSubstr("document 1 (b,")));
  EXPECT_THAT(describe_sample(*set, 0, 3), HasSubstr("sample 0: tokens 0 to 3"));
  EXPECT_THAT(fault_of([&] { describe_document(*set, 2); }), HasSubstr("documents 0 to 1"));
  EXPECT_THAT(fault_of([&] { describe_sample(*set, 100, 3); }), HasSubstr("no sample 100"));
}

}  // namespace
}  // namespace trireme::data::testing
