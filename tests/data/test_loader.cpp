// The order of samples: the same for any number of ranks, each sample once an epoch, resumable at any position.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/error.h"
#include "data/loader.h"
#include "data_fixture.h"

namespace trireme::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LoaderTest : public DataTest {
 protected:
  static constexpr int64_t seq_len = 8;

  std::shared_ptr<const Dataset> corpus() const {
    std::map<std::string, std::string> texts;
    for (int i = 0; i < 5; ++i) texts[fmt::format("{}", i)] = some_text(static_cast<uint64_t>(i), 90);
    return dataset(texts, 100);
  }
  static LoaderOptions layout(int64_t micro, int64_t accumulation, int64_t rank, int64_t ranks, uint64_t seed = 1) {
    return {.seed = seed,
            .seq_len = seq_len,
            .micro_batch_size = micro,
            .accumulation = accumulation,
            .data_rank = rank,
            .data_ranks = ranks};
  }

  /// A row of a batch: where in the global order, and its tokens with the last label.
  using Row = std::pair<uint64_t, std::vector<int32_t>>;

  /// `steps` steps of all ranks, from `state`; the rows in the order of ranks and micro-batches. `state` moves on.
  static std::vector<Row> rows(const std::shared_ptr<const Dataset>& set, int64_t micro, int64_t accumulation,
                               int64_t ranks, int steps, LoaderState& state, uint64_t seed = 1) {
    std::vector<std::unique_ptr<Loader>> loaders;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      loaders.push_back(std::make_unique<Loader>(set, layout(micro, accumulation, rank, ranks, seed), state));
    }
    std::vector<Row> rows;
    for (int step = 0; step < steps; ++step) {
      for (auto& loader : loaders) {
        const auto batches = loader->next_step();
        EXPECT_EQ(static_cast<int64_t>(batches.size()), accumulation);
        for (const Batch& batch : batches) append(batch, micro, rows);
      }
    }
    for (auto& loader : loaders) EXPECT_EQ(loader->state(), loaders[0]->state());
    state = loaders[0]->state();
    return rows;
  }

  static void append(const Batch& batch, int64_t micro, std::vector<Row>& rows) {
    EXPECT_EQ(batch.rows, micro);
    EXPECT_EQ(batch.seq_len, seq_len);
    EXPECT_EQ(batch.valid_tokens, micro * seq_len);
    EXPECT_EQ(static_cast<int64_t>(batch.tokens.size()), micro * seq_len);
    EXPECT_EQ(static_cast<int64_t>(batch.sample_ids.size()), micro);
    for (int64_t row = 0; row < micro; ++row) {
      std::vector<int32_t> tokens(batch.tokens.begin() + row * seq_len, batch.tokens.begin() + (row + 1) * seq_len);
      const std::vector<int32_t> labels(batch.labels.begin() + row * seq_len,
                                        batch.labels.begin() + (row + 1) * seq_len);
      EXPECT_TRUE(std::equal(tokens.begin() + 1, tokens.end(), labels.begin())) << "labels are the next tokens";
      tokens.push_back(labels.back());
      rows.emplace_back(batch.sample_ids[static_cast<size_t>(row)], tokens);
    }
  }
};

TEST_F(LoaderTest, OrderDoesNotDependOnTheLayout) {
  const auto set = corpus();
  LoaderState start;
  const auto reference = rows(set, 12, 1, 1, 5, start);
  struct Layout {
    int64_t micro, accumulation, ranks;
  };
  for (const auto& [micro, accumulation, ranks] :
       std::vector<Layout>{{6, 1, 2}, {4, 1, 3}, {3, 1, 4}, {1, 12, 1}, {2, 3, 2}, {1, 1, 12}, {1, 4, 3}}) {
    LoaderState state;
    EXPECT_EQ(rows(set, micro, accumulation, ranks, 5, state), reference)
        << micro << " x " << accumulation << " x " << ranks;
    EXPECT_EQ(state.position, 60u);
  }
}

TEST_F(LoaderTest, EachSampleOnceAnEpoch) {
  const auto set = corpus();
  const auto all = stream(*set);
  const auto samples = static_cast<int64_t>(all.size() - 1) / seq_len;
  ASSERT_GT(samples, 20);
  LoaderState state;
  const auto drawn = rows(set, 1, 1, 1, static_cast<int>(3 * samples), state);
  std::multiset<std::vector<int32_t>> expected;
  for (int64_t k = 0; k < samples; ++k) {
    expected.emplace(all.begin() + k * seq_len, all.begin() + k * seq_len + seq_len + 1);
  }
  std::vector<std::vector<std::vector<int32_t>>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    auto& order = orders.emplace_back();
    for (int64_t i = 0; i < samples; ++i) {
      const Row& row = drawn[static_cast<size_t>(epoch * samples + i)];
      EXPECT_EQ(row.first, static_cast<uint64_t>(epoch * samples + i));
      order.push_back(row.second);
    }
    EXPECT_EQ(std::multiset<std::vector<int32_t>>(order.begin(), order.end()), expected) << "epoch " << epoch;
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  LoaderState other;
  EXPECT_NE(rows(set, 1, 1, 1, static_cast<int>(3 * samples), other, 2), drawn) << "another seed";
  LoaderState again;
  EXPECT_EQ(rows(set, 1, 1, 1, static_cast<int>(3 * samples), again), drawn) << "the same seed";
}

TEST_F(LoaderTest, ResumesAtAnyPositionWithAnyRanks) {
  const auto set = corpus();
  LoaderState start;
  const auto reference = rows(set, 1, 1, 1, 96, start);  // several epochs
  for (int first = 0; first <= 7; ++first) {
    LoaderState state;
    auto drawn = rows(set, 2, 1, 3, first, state);
    // Through JSON, as a checkpoint has it.
    state = nlohmann::json::parse(nlohmann::json(state).dump()).get<LoaderState>();
    const auto second = rows(set, 1, 2, 2, 3, state);  // global batch 4
    drawn.insert(drawn.end(), second.begin(), second.end());
    const auto third = rows(set, 5, 1, 1, 2, state);
    drawn.insert(drawn.end(), third.begin(), third.end());
    ASSERT_LE(drawn.size(), reference.size());
    EXPECT_TRUE(std::equal(drawn.begin(), drawn.end(), reference.begin())) << "after " << first << " steps";
    EXPECT_EQ(state.position, drawn.size());
  }
}

TEST_F(LoaderTest, StateCountsWhatWasHandedOut) {
  Loader loader(corpus(), layout(2, 2, 0, 2));
  EXPECT_EQ(loader.state().position, 0u) << "what the thread read ahead does not count";
  loader.next_step();
  EXPECT_EQ(loader.state().position, 8u);
  EXPECT_EQ(loader.global_batch_size(), 8);
}

TEST_F(LoaderTest, FewerSamplesThanAGlobalBatch) {
  const auto set = dataset({{"a", "the rain in Spain"}});
  const auto samples = (set->token_count() - 1) / seq_len;
  ASSERT_EQ(samples, 1);
  LoaderState state;
  const auto drawn = rows(set, 4, 2, 2, 3, state);
  EXPECT_EQ(drawn.size(), 48u);
  for (const Row& row : drawn) EXPECT_EQ(row.second, drawn[0].second);
}

TEST_F(LoaderTest, Faults) {
  const auto set = dataset({{"a", "rain"}});
  const int64_t tokens = set->token_count();
  LoaderOptions options = layout(1, 1, 0, 1);
  options.seq_len = tokens - 1;
  EXPECT_EQ(Loader(set, options).samples_per_epoch(), 1) << "exactly enough";
  options.seq_len = tokens;
  EXPECT_THAT(fault_of([&] { Loader(set, options); }), AllOf(HasSubstr(fmt::format("has {} tokens", tokens)),
                                                             HasSubstr(fmt::format("seq_len + 1 = {}", tokens + 1)),
                                                             HasSubstr(fmt::format("at most {}", tokens - 1))));
  EXPECT_THAT(fault_of([&] { Loader(set, layout(0, 0, 2, 2)); }),
              AllOf(HasSubstr("micro_batch_size = 0"), HasSubstr("accumulation = 0"), HasSubstr("data rank 2")));

  options.seq_len = 2;
  const LoaderState good = Loader(set, options).state();
  LoaderState other = good;
  other.dataset = "0";
  other.seq_len = 3;
  other.seed = 9;
  EXPECT_THAT(fault_of([&] { Loader(set, options, other); }),
              AllOf(HasSubstr("other data"), HasSubstr("samples of 3 tokens"), HasSubstr("seed 9, and run.seed is 1")));
  nlohmann::json json = good;
  json["version"] = 2;
  EXPECT_THAT(fault_of([&] { json.get<LoaderState>(); }), HasSubstr("version 2"));
  json = good;
  json.erase("position");
  EXPECT_THAT(fault_of([&] { json.get<LoaderState>(); }), HasSubstr("position"));
}

TEST_F(LoaderTest, FailureOfTheReadingThreadIsThrownAtTheNextStep) {
  const auto set = corpus();
  const ShardEntry shard = set->manifest().shards.at(1);
  flip_byte(path("out") / shard.file, 140);
  const auto damaged = Dataset::open(path("out"));
  Loader loader(damaged, layout(1, 1, 0, 1));
  int handed_out = 0;
  std::string message;
  try {
    for (; handed_out < 1000; ++handed_out) loader.next_step();
  } catch (const InputError& error) {
    message = error.what();
  }
  EXPECT_LT(handed_out, 1000);
  EXPECT_THAT(message, AllOf(HasSubstr(shard.file), HasSubstr("document 0 of the shard")));
  EXPECT_EQ(loader.state().position, static_cast<uint64_t>(handed_out)) << "the failed step does not count";
  EXPECT_THROW(loader.next_step(), InputError) << "and stays failed";
}

TEST_F(LoaderTest, ManyLoadersEndAtOnce) {
  const auto set = corpus();
  for (int i = 0; i < 200; ++i) {
    Loader loader(set, layout(1, 1, 0, 1));
    if (i % 2 == 0) loader.next_step();
  }
}

TEST_F(LoaderTest, BatchesThatGrowSeeTheSameOrder) {
  const auto set = corpus();
  const auto options = [&](int64_t micro, int64_t rank, int64_t ranks) {
    LoaderOptions growing = layout(micro, 1, rank, ranks);
    growing.accumulation_at = [micro, ranks](uint64_t position) {  // 4 sequences, from position 8 on 8
      return (position < 8 ? 4 : 8) / (micro * ranks);
    };
    return growing;
  };
  const auto ids_of = [](const std::vector<Batch>& batches) {
    std::vector<uint64_t> ids;
    for (const Batch& batch : batches) ids.insert(ids.end(), batch.sample_ids.begin(), batch.sample_ids.end());
    return ids;
  };
  Loader alone(set, options(2, 0, 1)), first(set, options(1, 0, 2)), second(set, options(1, 1, 2));
  uint64_t next = 0;
  for (const uint64_t size : {4, 4, 8, 8}) {
    EXPECT_EQ(alone.global_batch_size(), static_cast<int64_t>(size));
    std::vector<uint64_t> expected(size);
    std::iota(expected.begin(), expected.end(), next);
    EXPECT_EQ(ids_of(alone.next_step()), expected);
    std::vector<uint64_t> both = ids_of(first.next_step());
    const std::vector<uint64_t> rest = ids_of(second.next_step());
    both.insert(both.end(), rest.begin(), rest.end());
    EXPECT_EQ(both, expected);
    next += size;
    EXPECT_EQ(alone.state().position, next);
  }
  // A resume in the middle of the ramp goes on with the size that is due there.
  Loader resumed(set, options(2, 0, 1), first.state());
  EXPECT_EQ(resumed.global_batch_size(), 8);
}

TEST_F(LoaderTest, StartsOfDocumentsAreNoLabelsWhenAskedFor) {
  const auto set = corpus();
  LoaderOptions masked = layout(8, 1, 0, 1);
  masked.mask_document_starts = true;
  Loader plain(set, layout(8, 1, 0, 1)), without(set, masked);
  int64_t starts = 0;
  for (int step = 0; step < 6; ++step) {
    const Batch a = plain.next_step()[0], b = without.next_step()[0];
    EXPECT_EQ(a.tokens, b.tokens);
    int64_t valid = 0;
    for (size_t i = 0; i < a.labels.size(); ++i) {
      const bool start = a.tokens[i] == set->end_of_text();
      EXPECT_EQ(b.labels[i], start ? ignored_label : a.labels[i]);
      starts += start ? 1 : 0;
      valid += start ? 0 : 1;
    }
    EXPECT_EQ(b.valid_tokens, valid);
  }
  EXPECT_GT(starts, 0) << "the texts hold no border";
}

}  // namespace
}  // namespace trireme::data::testing
