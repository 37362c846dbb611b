// Held-out windows: every token is a label once, over all ranks, and the bytes are those of the labels.
#include <gmock/gmock.h>

#include "base/error.h"
#include "data/evaluation_windows.h"
#include "data_fixture.h"

namespace trireme::data::testing {
namespace {

using ::testing::HasSubstr;

class EvaluationTest : public DataTest {};

TEST_F(EvaluationTest, EveryByteCountsOnce) {
  std::map<std::string, std::string> texts;
  for (int i = 0; i < 4; ++i) texts[fmt::format("{}", i)] = some_text(static_cast<uint64_t>(i), 50 + i);
  const auto set = dataset(texts, 60);
  const auto all = stream(*set);
  const auto total = static_cast<int64_t>(all.size());
  for (const int64_t seq_len : {int64_t{1}, int64_t{7}, int64_t{16}, total, total + 5}) {
    for (const int64_t micro : {1, 3}) {
      for (const int64_t ranks : {1, 2, 3, 4}) {
        for (const int64_t budget : {int64_t{0}, int64_t{1}, int64_t{50}, int64_t{77}, total - 1, total, total + 1}) {
          const std::string name =
              fmt::format("seq_len {}, micro {}, ranks {}, budget {}", seq_len, micro, ranks, budget);
          const int64_t used = budget <= 0 ? total : std::min(budget, total);
          std::vector<int> seen(static_cast<size_t>(total));
          int64_t batches = -1;
          int64_t valid = 0;
          for (int64_t rank = 0; rank < ranks; ++rank) {
            const EvaluationWindows windows(set, seq_len, micro, rank, ranks, budget);
            if (batches < 0) batches = windows.batch_count();
            ASSERT_EQ(windows.batch_count(), batches) << name;
            ASSERT_EQ(windows.tokens(), used) << name;
            int64_t bytes = 0;
            for (int64_t i = 0; i < used; ++i) {
              const int32_t id = all[static_cast<size_t>(i)];
              if (!tokenizer_.is_special(id)) bytes += static_cast<int64_t>(tokenizer_.token_bytes(id).size());
            }
            ASSERT_EQ(windows.text_bytes(), bytes) << name;
            for (int64_t b = 0; b < batches; ++b) {
              const Batch batch = windows.batch(b);
              ASSERT_EQ(static_cast<int64_t>(batch.labels.size()), micro * seq_len) << name;
              int64_t labels = 0;
              for (size_t i = 0; i < batch.labels.size(); ++i) {
                const auto row = static_cast<int64_t>(i) / seq_len;
                const int64_t position = static_cast<int64_t>(batch.sample_ids[static_cast<size_t>(row)]) * seq_len +
                                         static_cast<int64_t>(i) % seq_len;
                if (batch.labels[i] == ignored_label) {
                  ASSERT_GE(position, used) << name;
                  continue;
                }
                ++labels;
                ++seen[static_cast<size_t>(position)];
                ASSERT_EQ(batch.labels[i], all[static_cast<size_t>(position)]) << name;
                const int32_t before =
                    position == 0 ? tokenizer_.end_of_text() : all[static_cast<size_t>(position - 1)];
                ASSERT_EQ(batch.tokens[i], before) << name;
              }
              ASSERT_EQ(batch.valid_tokens, labels) << name;
              valid += labels;
            }
          }
          ASSERT_EQ(valid, used) << name;
          for (int64_t i = 0; i < total; ++i)
            ASSERT_EQ(seen[static_cast<size_t>(i)], i < used ? 1 : 0) << name << " token " << i;
        }
      }
    }
  }
  EXPECT_EQ(EvaluationWindows(set, 16, 2).text_bytes(), set->text_bytes());
}

TEST_F(EvaluationTest, Faults) {
  const auto set = dataset({{"a", "rain in Spain"}});
  EXPECT_THAT(fault_of([&] { EvaluationWindows(set, 0, 1); }), HasSubstr("seq_len 0"));
  EXPECT_THAT(fault_of([&] { EvaluationWindows(set, 4, 1, 2, 2); }), HasSubstr("rank 2 of 2"));
  // Another tokenizer beside the data: the bytes of a prefix would be wrong.
  TokenizerParts parts = tokenizer_.parts();
  parts.ranks.pop_back();
  Tokenizer(parts).save(set->tokenizer_folder());
  EXPECT_THAT(fault_of([&] { EvaluationWindows(set, 4, 1, 0, 1, 3); }), HasSubstr("not the one that made the data"));
}

}  // namespace
}  // namespace trireme::data::testing
