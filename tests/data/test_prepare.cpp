// Text to shards: what is kept and counted, and that threads, kills and repeats do not show in the output.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/input_files.h"
#include "data/shard.h"
#include "data/tokenizer_training.h"
#include "data_fixture.h"

namespace trireme::data::testing {
namespace {

using ::testing::HasSubstr;

class PrepareTest : public DataTest {
 protected:
  /// About 60 documents, some of them duplicates or empty, some not UTF-8.
  void write_corpus() const {
    for (uint64_t i = 0; i < 60; ++i) {
      const std::string name = fmt::format("{:02}/{:03}.txt", i % 4, i);
      if (i % 13 == 5) {
        write(name, "");
      } else if (i % 10 == 7) {
        write(name, some_text(3, 300));  // always the same
      } else if (i == 31) {
        write(name, some_text(i, 500) + "\xFF\xFE" + some_text(i + 100, 500));
      } else {
        write(name, some_text(i, static_cast<int64_t>(i * 37 % 1500) + 1));
      }
    }
  }
  static const PrepareCounts& counts(const PrepareReport& report, const std::string& split) {
    for (const PrepareReport::Split& row : report.splits) {
      if (row.name == split) return row.counts;
    }
    throw std::runtime_error("no split " + split);
  }
};

TEST_F(PrepareTest, Documents) {
  struct Row {
    const char* name;
    std::map<std::string, std::string> texts;
    std::vector<std::string> kept;  // in order
    int64_t duplicates, empty;
  };
  const std::vector<Row> rows{
      {"one", {{"a", "hello"}}, {"hello"}, 0, 0},
      {"two in order of their paths", {{"b", "second"}, {"a", "first"}}, {"first", "second"}, 0, 0},
      {"folders sort with the rest", {{"b/x", "2"}, {"a", "1"}, {"c", "3"}}, {"1", "2", "3"}, 0, 0},
      {"empty and blank", {{"a", ""}, {"b", " \n\t"}, {"c", "x"}}, {"x"}, 0, 2},
      {"duplicates keep the first", {{"a", "x"}, {"b", "y"}, {"c", "x"}, {"d", "x"}}, {"x", "y"}, 2, 0},
      {"hidden files are left out", {{".a", "no"}, {".git/b", "no"}, {"c", "yes"}}, {"yes"}, 0, 0},
      {"a text like a special token is text", {{"a", "<|endoftext|>"}}, {"<|endoftext|>"}, 0, 0},
  };
  for (const Row& row : rows) {
    std::filesystem::remove_all(path("texts"));
    std::filesystem::remove_all(path("out"));
    for (const auto& [name, content] : row.texts) write(name, content);
    const PrepareReport report = prepare(options());
    const auto dataset = Dataset::open(path("out"));
    EXPECT_EQ(stream(*dataset), expected_stream(row.kept)) << row.name;
    EXPECT_EQ(dataset->document_count(), static_cast<int64_t>(row.kept.size())) << row.name;
    EXPECT_EQ(counts(report, "train").duplicates, row.duplicates) << row.name;
    EXPECT_EQ(counts(report, "train").empty, row.empty) << row.name;
    EXPECT_EQ(counts(report, "train").tokens, dataset->token_count()) << row.name;
    EXPECT_EQ(Tokenizer::load(dataset->tokenizer_folder()).hash(), tokenizer_.hash()) << row.name;
    EXPECT_TRUE(dataset->verify().empty()) << row.name;
  }
}

TEST_F(PrepareTest, InvalidUtf8) {
  const std::string bad = "good \xE9 end";
  write("a", "first");
  write("b", bad);
  write("c", "good \xEF\xBF\xBD end");  // what b becomes when its byte is replaced
  struct Row {
    InvalidUtf8 option;
    std::vector<std::string> kept;
    int64_t dropped, duplicates;
  };
  const std::vector<Row> rows{
      {InvalidUtf8::keep, {"first", bad, "good \xEF\xBF\xBD end"}, 0, 0},
      {InvalidUtf8::replace, {"first", "good \xEF\xBF\xBD end"}, 0, 1},
      {InvalidUtf8::drop, {"first", "good \xEF\xBF\xBD end"}, 1, 0},
  };
  for (const Row& row : rows) {
    PrepareOptions prepared = options(std::string(name_of(row.option)));
    prepared.invalid_utf8 = row.option;
    const PrepareReport report = prepare(prepared);
    const auto dataset = Dataset::open(prepared.out);
    EXPECT_EQ(stream(*dataset), expected_stream(row.kept)) << name_of(row.option);
    EXPECT_EQ(counts(report, "train").invalid, 1) << name_of(row.option);
    EXPECT_EQ(counts(report, "train").invalid_dropped, row.dropped) << name_of(row.option);
    EXPECT_EQ(counts(report, "train").duplicates, row.duplicates) << name_of(row.option);
  }
  PrepareOptions strict = options("error");
  strict.invalid_utf8 = InvalidUtf8::error;
  const std::string message = fault_of([&] { prepare(strict); });
  EXPECT_THAT(message, HasSubstr("texts/b"));
  EXPECT_THAT(message, HasSubstr("0xE9 at offset 5"));
}

TEST_F(PrepareTest, DocumentSeparator) {
  write("a", "one\n<|sep|>\ntwo\n<|sep|>\n\n<|sep|>\none\n");
  write("b", "three");
  PrepareOptions prepared = options();
  prepared.document_separator = "<|sep|>";
  prepared.shard_tokens = 4;  // shards, and so the places to continue from, lie within a file
  const PrepareReport report = prepare(prepared);
  const auto dataset = Dataset::open(prepared.out);
  EXPECT_EQ(stream(*dataset), expected_stream({"one\n", "two\n", "three"}));
  EXPECT_EQ(counts(report, "train").empty, 1);
  EXPECT_EQ(counts(report, "train").duplicates, 1);
  EXPECT_EQ(dataset->document(1).name, "a");
  EXPECT_EQ(dataset->document(2).name, "b");
}

TEST_F(PrepareTest, OutputDoesNotDependOnThreads) {
  write_corpus();
  std::map<std::string, std::string> first;
  for (const int threads : {1, 2, 5}) {
    PrepareOptions prepared = options(fmt::format("out{}", threads));
    prepared.threads = threads;
    prepared.shard_tokens = 2000;
    prepare(prepared);
    const auto files = tree(prepared.out);  // the journal included: it holds neither times of day nor threads
    if (first.empty()) first = files;
    EXPECT_EQ(files, first) << threads << " threads";
  }
  EXPECT_GT(first.size(), 6u) << "several shards";
}

TEST_F(PrepareTest, HeldOutSplits) {
  write("1989.txt", "the year before");
  write("1991.txt", "after");
  write("1992.txt", "");
  write("more/2001.txt", "later");
  write("more/copy.txt", "after");  // what the held-out split has, training must not see
  struct Row {
    const char* name;
    std::vector<std::string> globs;
    std::string list;
  };
  const std::vector<Row> rows{{"glob", {"199[1-9]*", "more/2*"}, ""},
                              {"list", {}, "1991.txt\r\n1992.txt\n\nmore/2001.txt\n"},
                              {"both", {"1992.txt"}, "1991.txt\n2001.txt\n"}};
  for (const Row& row : rows) {
    PrepareOptions prepared = options(fmt::format("out-{}", row.name));
    prepared.eval_glob = row.globs;
    if (!row.list.empty()) {
      prepared.eval_list = path("list");
      std::ofstream(path("list"), std::ios::binary) << row.list;
    }
    const PrepareReport report = prepare(prepared);
    EXPECT_EQ(stream(*Dataset::open(prepared.out / "train")), expected_stream({"the year before"})) << row.name;
    EXPECT_EQ(stream(*Dataset::open(prepared.out / "eval")), expected_stream({"after", "later"})) << row.name;
    EXPECT_EQ(counts(report, "train").held_out, 1) << row.name;
    EXPECT_EQ(counts(report, "eval").empty, 1) << row.name;
    EXPECT_THAT(fault_of([&] { Dataset::open(prepared.out); }), HasSubstr("give that folder")) << row.name;
  }
}

TEST_F(PrepareTest, HeldOutByHash) {
  write_corpus();
  PrepareOptions whole = options("whole");
  const PrepareCounts all = counts(prepare(whole), "train");
  PrepareOptions split = options("split");
  split.eval_hash_percent = 30;
  const PrepareReport report = prepare(split);
  const PrepareCounts train = counts(report, "train");
  const PrepareCounts eval = counts(report, "eval");
  EXPECT_EQ(train.documents + eval.documents, all.documents);
  EXPECT_EQ(train.tokens + eval.tokens, all.tokens);
  EXPECT_EQ(train.duplicates + eval.duplicates, all.duplicates);
  EXPECT_EQ(train.empty + eval.empty, all.empty);
  EXPECT_EQ(train.held_out, 0) << "equal texts fall into the same split";
  EXPECT_GT(eval.documents, 5);
  EXPECT_LT(eval.documents, 30);
  EXPECT_TRUE(prepare(split).up_to_date);
}

TEST_F(PrepareTest, KilledPreparationContinues) {
  write_corpus();
  const auto run = [&](const std::string& out, bool held_out, int kill_after) {
    PrepareOptions prepared = options(out);
    prepared.shard_tokens = 1500;
    if (held_out) prepared.eval_glob = {"01/*"};
    int shards = 0;
    if (kill_after > 0) {
      prepared.on_shard = [&](const std::string&, const ShardEntry&) {
        if (++shards == kill_after) throw std::runtime_error("killed");
      };
    }
    return prepare(prepared);
  };
  for (const bool held_out : {false, true}) {
    run(held_out ? "whole1" : "whole0", held_out, 0);
    const auto whole = tree(path(held_out ? "whole1" : "whole0"));
    for (int kill_after : {1, 3, 5}) {
      const std::string out = fmt::format("killed{}{}", held_out, kill_after);
      EXPECT_THROW(run(out, held_out, kill_after), std::runtime_error);
      EXPECT_THROW(Dataset::open(path(out)), InputError) << "half a set must not open";
      EXPECT_THROW(run(out, held_out, 2), std::runtime_error);
      // A half-written shard of the kill is in nobody's way.
      std::ofstream(path(out) / "shard-00099.tokens.tmp") << "half";
      const PrepareReport report = run(out, held_out, 0);
      EXPECT_EQ(report.kept_shards, kill_after + 2) << out;
      auto files = tree(path(out));
      files.erase("shard-00099.tokens.tmp");
      EXPECT_EQ(files, whole) << out;
    }
  }
}

TEST_F(PrepareTest, UnfinishedWithAnotherSettingOrDamageStartsOver) {
  write_corpus();
  PrepareOptions prepared = options();
  prepared.shard_tokens = 1500;
  prepare(prepared);
  const auto whole = tree(path("out"));
  for (const bool damage : {false, true}) {
    PrepareOptions killed = options(damage ? "damage" : "setting");
    killed.shard_tokens = damage ? 1500 : 1000;
    killed.on_shard = [](const std::string&, const ShardEntry&) { throw std::runtime_error("killed"); };
    EXPECT_THROW(prepare(killed), std::runtime_error);
    if (damage) flip_byte(killed.out / "shard-00000.tokens", 200);
    killed.shard_tokens = 1500;
    killed.on_shard = nullptr;
    EXPECT_EQ(prepare(killed).kept_shards, 0);
    EXPECT_EQ(tree(killed.out), whole);
  }
}

TEST_F(PrepareTest, FinishedOutputIsKept) {
  write("a", "first text");
  write("b", "second");
  EXPECT_FALSE(prepare(options()).up_to_date);
  EXPECT_TRUE(prepare(options()).up_to_date);

  // Touched, same content: still up to date.
  write("b", "second");
  std::filesystem::last_write_time(path("texts/b"),
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_TRUE(prepare(options()).up_to_date);
}

TEST_F(PrepareTest, ChangesAreRefusedWithoutForce) {
  write("a", "first text");
  write("b", "second");
  prepare(options());
  PrepareOptions other = options();
  other.shard_tokens = 5;
  EXPECT_THAT(fault_of([&] { prepare(other); }), HasSubstr("shard-tokens was 67108864 and is 5; --force"));

  write("b", "SECOND");  // same size
  std::filesystem::last_write_time(path("texts/b"),
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_THAT(fault_of([&] { prepare(options()); }), HasSubstr("input files changed"));
  write("c", "third");
  EXPECT_THAT(fault_of([&] { prepare(options()); }), HasSubstr("input files changed"));
  PrepareOptions force = options();
  force.force = true;
  prepare(force);
  EXPECT_EQ(stream(*Dataset::open(path("out"))), expected_stream({"first text", "SECOND", "third"}));

  // Opening does not read the tokens; who forces it wants every byte looked at.
  EXPECT_TRUE(prepare(force).up_to_date);
  const std::filesystem::path shard = path("out/shard-00000.tokens");
  flip_byte(shard, sizeof(ShardHeader));
  EXPECT_FALSE(Dataset::open(path("out"))->verify().empty());
  EXPECT_FALSE(prepare(force).up_to_date);
  EXPECT_THAT(Dataset::open(path("out"))->verify(), ::testing::IsEmpty());

  std::filesystem::resize_file(path("out/shard-00000.tokens"), 100);
  EXPECT_THAT(fault_of([&] { prepare(options()); }), HasSubstr("cut short"));
  EXPECT_FALSE(prepare(force).up_to_date);
  EXPECT_TRUE(prepare(options()).up_to_date);
}

std::string gzip(const std::string& text) {
  const std::string path = std::filesystem::temp_directory_path() / fmt::format("trireme-gzip-{}", ::getpid());
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  std::string packed = read_file(path);
  std::filesystem::remove(path);
  return packed;
}

std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

TEST_F(PrepareTest, JsonLinesAndPackedFiles) {
  const std::string long_text = some_text(5, 3'000'000);  // more than a piece of the unpacking
  write("a.jsonl", "{\"text\": \"one\"}\r\n{\"id\": 7, \"text\": \"two\\nlines \\u00e9\"}\n\n{\"text\": \"one\"}\n");
  write("b.txt.gz", gzip("three"));
  write("c.ndjson.zst", zstd("{\"text\": \"four\"}\n{\"text\": \"three\"}"));
  write("d.zst", zstd(long_text) + zstd("!"));     // frames follow each other
  write("e.GZ", gzip("five ") + gzip("members"));  // so do members
  for (const int threads : {1, 3}) {
    std::filesystem::remove_all(path("out"));
    PrepareOptions own = options();
    own.threads = threads;
    const PrepareReport report = prepare(own);
    EXPECT_EQ(stream(*Dataset::open(path("out"))),
              expected_stream({"one", "two\nlines \u00e9", "three", "four", long_text + "!", "five members"}));
    EXPECT_EQ(counts(report, "train").duplicates, 2);
    EXPECT_EQ(counts(report, "train").empty, 1);
    EXPECT_TRUE(prepare(own).up_to_date);
    own.text_field = "id";
    EXPECT_THAT(fault_of([&] { prepare(own); }), HasSubstr("text-field"));
  }
  for (const auto& entry : std::filesystem::directory_iterator(path("out")))
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("unpacked")));
}

TEST_F(PrepareTest, BadJsonLinesAndBadPacking) {
  const struct {
    const char* name;
    std::string text;
    std::vector<const char*> said;
  } rows[] = {
      {"a.jsonl",
       "{\"text\": \"x\"}\n{\"text\": \n[1]\n{\"txet\": \"x\"}\n{\"text\": 5}\n{\"text\": \"\xFF\"}\n",
       {"a.jsonl, line 2 is not JSON", "line 3 is array where an object is expected",
        "line 4 has no field `text`; did you mean --text-field txet?", "line 5 has number as `text`",
        "line 6 is not JSON"}},
      {"a.gz", gzip("some text that is packed").substr(0, 20), {"a.gz is damaged or cut short"}},
      {"b.gz", "no gzip at all", {"b.gz is not packed with gzip"}},
      {"a.zst", zstd(some_text(1, 5000)).substr(0, 1000), {"a.zst is cut short"}},
      {"b.zst", "no zstd at all", {"b.zst is damaged"}},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    std::filesystem::remove_all(path("texts"));
    std::filesystem::remove_all(path("out"));
    write(row.name, row.text);
    const std::string fault = fault_of([&] { prepare(options()); });
    for (const char* said : row.said) EXPECT_THAT(fault, HasSubstr(said));
  }
}

TEST_F(PrepareTest, ATokenizerOfJsonLinesIsThatOfTheirTexts) {
  const std::string one = some_text(1, 4000), two = some_text(2, 4000);
  const auto trained = [&] {
    TokenizerTraining training;
    training.vocab = 300;
    return train_tokenizer(list_text_files(std::vector<std::string>{path("texts").string()}), training)
        .tokenizer.hash();
  };
  write("a", one);
  write("b", two);
  const std::string plain = trained();
  std::filesystem::remove_all(path("texts"));
  write("a.jsonl.gz", gzip(nlohmann::json{{"text", one}}.dump() + "\n" + nlohmann::json{{"text", two}}.dump()));
  EXPECT_EQ(trained(), plain);
  // More than a stretch of work (4 MiB), in a file that is smaller than that while it is packed.
  std::filesystem::remove_all(path("texts"));
  const std::string rare(8 << 20, ' '), text = rare + one + two;
  write("a", text);
  const std::string whole = trained();
  std::filesystem::remove_all(path("texts"));
  write("a.Gz", gzip(text));
  EXPECT_EQ(trained(), whole);
}

TEST_F(PrepareTest, ATokenizerInTheOutputFolderStays) {
  for (const auto& [name, text] : {std::pair{"a", "one"}, std::pair{"b", "two"}}) write(name, text);
  for (const bool split : {false, true}) {
    SCOPED_TRACE(split);
    std::filesystem::remove_all(path("out"));
    make_directories(path("out"));
    std::filesystem::copy(options().tokenizer, path("out/tokenizer"), std::filesystem::copy_options::recursive);
    PrepareOptions own = options();
    own.tokenizer = path("out/tokenizer");
    if (split) own.eval_glob = {"a"};
    prepare(own);
    own.shard_tokens = 3;
    own.force = true;
    EXPECT_FALSE(prepare(own).up_to_date);
    EXPECT_EQ(Tokenizer::load(own.tokenizer).hash(), Tokenizer::load(options().tokenizer).hash());
  }
}

TEST_F(PrepareTest, AnotherTokenizerIsNotOverwritten) {
  write("a", "text");
  TokenizerTraining training;
  training.vocab = 257;
  train_tokenizer(list_text_files(std::vector<std::string>{path("texts").string()}), training)
      .tokenizer.save(path("out/tokenizer"));
  EXPECT_THAT(fault_of([&] { prepare(options()); }), HasSubstr("out/tokenizer holds another tokenizer"));
  EXPECT_EQ(Tokenizer::load(path("out/tokenizer")).vocab_size(), 257);
}

TEST_F(PrepareTest, Faults) {
  write("a", "text");
  struct Row {
    const char* name;
    std::function<void(PrepareOptions&)> change;
    std::vector<const char*> said;
  };
  const std::vector<Row> rows{
      {"no input", [](auto& o) { o.inputs.clear(); }, {"no input"}},
      {"all missing inputs at once",
       [&](auto& o) {
         o.inputs = {"no1", path("x*").string()};
       },
       {"no1", "no file matches"}},
      {"empty folder", [&](auto& o) { o.inputs = {path("empty").string()}; }, {"has no files"}},
      {"only empty text",
       [&](auto& o) { o.inputs = {path("blank").string()}; },
       {"train split has no document", "1 documents are empty"}},
      {"no tokenizer", [&](auto& o) { o.tokenizer = path("none"); }, {"none"}},
      {"glob without match", [](auto& o) { o.eval_glob = {"z*"}; }, {"--eval-glob", "z*"}},
      {"everything held out", [](auto& o) { o.eval_glob = {"*"}; }, {"nothing is left to train on"}},
      {"two ways to hold out", [](auto& o) { o.eval_glob = {"a"}, o.eval_hash_percent = 5; }, {"choose one way"}},
      {"hash of nothing", [](auto& o) { o.eval_hash_percent = 1e-9; }, {"eval split has no document", "--eval-glob"}},
      {"hash of everything", [](auto& o) { o.eval_hash_percent = 100; }, {"below 100"}},
      {"eval list is missing", [&](auto& o) { o.eval_list = path("nolist"); }, {"nolist"}},
      {"shard size", [](auto& o) { o.shard_tokens = 0, o.threads = -1; }, {"--shard-tokens 0", "--threads -1"}},
  };
  std::filesystem::create_directories(path("empty"));
  std::ofstream(path("blank")) << " \n";
  for (const Row& row : rows) {
    PrepareOptions prepared = options("faults");
    row.change(prepared);
    const std::string message = fault_of([&] { prepare(prepared); });
    for (const char* part : row.said) EXPECT_THAT(message, HasSubstr(part)) << row.name;
    EXPECT_FALSE(std::filesystem::exists(path("faults/manifest.json"))) << row.name;
  }
}

TEST_F(PrepareTest, OnePreparationAtATimeAndOutputBelowTheInput) {
  write("a", "text");
  PrepareOptions prepared = options("texts/out");
  prepare(prepared);
  EXPECT_TRUE(prepare(prepared).up_to_date) << "its own output is no input";
  const FileDescriptor held = open_file(prepared.out, O_RDONLY | O_DIRECTORY, "open");
  ASSERT_EQ(::flock(held.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_THAT(fault_of([&] { prepare(prepared); }), HasSubstr("another preparation"));
}

TEST_F(PrepareTest, ReportIsForAPerson) {
  write_corpus();
  const std::string text = to_text(prepare(options()));
  for (const char* part : {"documents", "bytes/token", "duplicate", "MB/s", "train"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(to_text(prepare(options())), HasSubstr("Up to date"));
}

}  // namespace
}  // namespace trireme::data::testing
