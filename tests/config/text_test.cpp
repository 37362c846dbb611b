// Configs as text: what is written reads back to the same values, the shipped files load, the page is up to date.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "config/config.h"
#include "config/option.h"
#include "config/render.h"
#include "describe/model_shape.h"

namespace trireme::config {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

MATCHER_P(SameConfig, expected, "has the same values") {
  for (const Difference& difference : differences(expected, arg)) {
    *result_listener << difference.key << " is " << difference.is << " and was " << difference.was << "; ";
  }
  return differences(expected, arg).empty();
}

const std::vector<std::string> kEveryKind = {"run.dir=/a \"b\" \\c\té",
                                             "optimizer.lr=0.1",
                                             "optimizer.eps=4.9406564584124654e-324",
                                             "optimizer.weight_decay=0.30000000000000004",
                                             "data.text=[\"x\", \"y, z\"]",
                                             "run.seed=9223372036854775807",
                                             "train.clip_grad_norm=123456789012345680000.0",
                                             "comm.timeout_s=100",
                                             "model.tied=false"};

TEST(Text, ResolvedConfigReadsBackToItself) {
  const std::string minimal = "[model]\npreset = \"llama3.2-1b\"\n[data]\npath = \"d\"\n[train]\nseq_len = 64\n";
  const Config config = parse_config(minimal, "run.toml", "/folder", kEveryKind);
  // From another folder and under another name: everything is in the text.
  const Config again = parse_config(to_toml(config), "other.toml", "/elsewhere");
  EXPECT_THAT(again, SameConfig(config));
  EXPECT_EQ(to_toml(again), to_toml(config));
}

TEST(Text, EveryOptionIsWrittenOnceAndBoundToItsOwnMember) {
  std::set<std::string> keys;
  for (const Option& option : options()) {
    SCOPED_TRACE(option.key);
    EXPECT_TRUE(keys.insert(option.key).second) << "twice in the table";
    EXPECT_TRUE(std::any_of(sections().begin(), sections().end(),
                            [&](const Section& s) { return s.name == option.section(); }));
    EXPECT_FALSE(option.help.empty());
    // Change this member alone; exactly this key must differ. Catches a binding to a neighbour.
    Config changed;
    Value value = option.binding.get(changed);
    if (auto* integer = std::get_if<int64_t>(&value))
      ++*integer;
    else if (auto* number = std::get_if<double>(&value))
      *number += 1;
    else if (auto* boolean = std::get_if<bool>(&value))
      *boolean = !*boolean;
    else if (auto* texts = std::get_if<std::vector<std::string>>(&value))
      texts->push_back("more");
    else
      value = option.binding.choices.empty() ? std::string("other") : option.binding.choices.back();
    option.binding.set(changed, value);
    const std::vector<Difference> found = differences(Config{}, changed);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].key, option.key);
    EXPECT_EQ(found[0].is, to_toml(value));
  }
}

TEST(Text, DefaultsPassTheirOwnChecks) {
  for (const Option& option : options()) {
    if (option.follows.empty()) {
      EXPECT_EQ(option.fault(option.binding.get(Config{})), "") << option.key;
    }
  }
}

TEST(Text, CommentedFileHasEveryOptionAndLoads) {
  const std::string all = render_all();
  for (const Option& option : options()) {
    EXPECT_THAT(all,
                HasSubstr("\n" + std::string(option.follows.empty() ? "" : "# ") + std::string(option.name()) + " = "))
        << option.key;
  }
  for (size_t start = 0; start < all.size();) {
    const size_t end = all.find('\n', start);
    EXPECT_LE(end - start, 120u) << all.substr(start, end - start);
    start = end + 1;
  }
  const Config config = parse_config(all, "run.toml", "/folder");
  const Config expected =
      parse_config("[model]\npreset = \"llama-7m\"\n[data]\npath = \"../data/sotu/train\"\n", "run.toml", "/folder");
  EXPECT_THAT(config, SameConfig(expected));
  EXPECT_EQ(config.model.heads, describe::preset("llama-7m").shape.heads);
}

TEST(Text, NumbersKeepTheirTypeAndDigits) {
  const struct {
    Value value;
    const char* text;
  } rows[] = {{Value(int64_t{-1}), "-1"},
              {Value(1.0), "1.0"},
              {Value(0.1), "0.1"},
              {Value(1e-5), "1e-5"},
              {Value(3e-4), "0.0003"},
              {Value(1e300), "1e300"},
              {Value(1e-310), "1e-310"},
              {Value(-0.5), "-0.5"},
              {Value(true), "true"},
              {Value(std::string("a\nb")), "\"a\\u000Ab\""},
              {Value(std::vector<std::string>{}), "[]"}};
  for (const auto& row : rows) EXPECT_EQ(to_toml(row.value), row.text);
}

TEST(Text, ShippedConfigsLoadForTheirWorkers) {
  const std::filesystem::path folder = std::filesystem::path(TRIREME_SOURCE_DIR) / "configs";
  for (int64_t world = 1; world <= 8; ++world) {
    Config tiny = load_config(folder / "tiny.toml");
    EXPECT_EQ(resolve_world(tiny, world), 1);
    EXPECT_EQ(tiny.train.global_batch_size, 4 * world);
  }
  const Config tiny = load_config(folder / "tiny.toml");
  EXPECT_EQ(tiny.lr_schedule.steps, 40);
  EXPECT_EQ(tiny.data.path, (folder / "../data/tiny/train").lexically_normal());
  EXPECT_NEAR(static_cast<double>(describe::count_parameters(tiny.model).total()), 1e5, 1e4);
  for (const int64_t world : {1, 2}) {
    Config sotu = load_config(folder / "sotu.toml");
    EXPECT_EQ(resolve_world(sotu, world) * world * sotu.train.micro_batch_size, sotu.train.global_batch_size);
    EXPECT_NEAR(static_cast<double>(describe::count_parameters(sotu.model).total()), 7.3e6, 0.3e6);
  }
}

TEST(Text, CommittedPageIsUpToDate) {
  const std::string page = read_file(std::filesystem::path(TRIREME_SOURCE_DIR) / "docs" / "configuration.md");
  EXPECT_TRUE(page == render_docs()) << "run `trireme config --docs > docs/configuration.md`";
}

}  // namespace
}  // namespace trireme::config
