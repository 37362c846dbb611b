// Scores of choices against log-softmax of each text by itself, and the same bits for any number of ranks. Catches:
// rows that see what fills up their neighbours, labels that are one off, scores that land at another text, a share of
// the work that is done twice or by nobody.
#include "train/choice_scores.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/ranks.h"
#include "base/random.h"
#include "parallel/data_parallel.h"

namespace trireme::train {
namespace {

constexpr int64_t kVocab = 61;

describe::ModelShape shape() {
  describe::ModelShape shape;
  shape.layers = 2;
  shape.hidden = 24;
  shape.heads = 3;
  shape.kv_heads = 1;
  shape.head_dim = 8;
  shape.ffn = 40;
  shape.vocab = kVocab;
  shape.max_seq_len = 32;
  return shape;
}

// A model on a communicator, as a run has it.
struct Trained {
  explicit Trained(std::shared_ptr<comm::Communicator> data)
      : communicator(std::move(data)),
        model(models::make_model(shape(), at::kDouble)),
        parallel(*model, *alone, *communicator, at::kCPU) {
    parallel.initialize(5);
  }
  std::shared_ptr<comm::Communicator> communicator, alone = comm::Communicator::solo("shard");
  std::unique_ptr<models::Model> model;
  parallel::DataParallel parallel;
};

// Questions of 2 to 4 choices whose texts have 2 to 33 tokens, of which 1 to all but the first are scored.
std::vector<data::Question> draw(int64_t count) {
  const random::Key key = random::make_key(3, "questions");
  uint64_t drawn = 0;
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random::below(key, drawn++, static_cast<uint64_t>(bound)));
  };
  std::vector<data::Question> questions(static_cast<size_t>(count));
  for (data::Question& question : questions) {
    question.choices.resize(static_cast<size_t>(2 + below(3)));
    question.answer = below(static_cast<int64_t>(question.choices.size()));
    for (data::Choice& choice : question.choices) {
      choice.text.tokens.resize(static_cast<size_t>(2 + below(32)));
      for (int32_t& token : choice.text.tokens) token = static_cast<int32_t>(below(kVocab));
      choice.text.scored = 1 + below(static_cast<int64_t>(choice.text.tokens.size()) - 1);
      choice.bytes = 1 + below(9);
    }
  }
  return questions;
}

double reference(models::Model& model, const data::ScoredText& text) {
  const at::Tensor tokens = at::tensor(std::vector<int64_t>(text.tokens.begin(), text.tokens.end()));
  const int64_t size = tokens.numel() - 1;
  const at::Tensor logits = models::logits(model, tokens.narrow(0, 0, size).unsqueeze(0))[0];
  return logits.log_softmax(1)
      .gather(1, tokens.narrow(0, 1, size).unsqueeze(1))
      .narrow(0, size - text.scored, text.scored)
      .sum()
      .item<double>();
}

TEST(ChoiceScores, EachIsThatOfItsTextAlone) {
  const at::NoGradGuard no_grad;
  Trained trained(comm::Communicator::solo("data"));
  for (const int64_t count : {1, 7, 40}) {
    for (const int64_t micro_batch_size : {1, 4, 200}) {
      SCOPED_TRACE(fmt::format("{} questions, {} at once", count, micro_batch_size));
      const std::vector<data::Question> questions = draw(count);
      const auto result = evaluate_choices(*trained.model, questions, *trained.communicator,
                                           {.micro_batch_size = micro_batch_size, .wants_to_stop = {}});
      ASSERT_TRUE(result);
      ASSERT_EQ(result->questions.size(), questions.size());
      int64_t right = 0, right_by_bytes = 0;
      for (size_t i = 0; i < questions.size(); ++i) {
        const data::Question& question = questions[i];
        std::vector<double> expected, by_bytes;
        for (const data::Choice& choice : question.choices) {
          expected.push_back(reference(*trained.model, choice.text));
          by_bytes.push_back(expected.back() / static_cast<double>(choice.bytes));
        }
        const auto index_of_highest = [](const std::vector<double>& scores) {
          return std::ranges::max_element(scores) - scores.begin();
        };
        EXPECT_THAT(result->questions[i].scores, testing::Pointwise(testing::DoubleNear(1e-9), expected));
        EXPECT_EQ(result->questions[i].acc, index_of_highest(expected) == question.answer);
        EXPECT_EQ(result->questions[i].acc_norm, index_of_highest(by_bytes) == question.answer);
        right += result->questions[i].acc;
        right_by_bytes += result->questions[i].acc_norm;
      }
      EXPECT_EQ(result->acc, static_cast<double>(right) / static_cast<double>(count));
      EXPECT_EQ(result->acc_norm, static_cast<double>(right_by_bytes) / static_cast<double>(count));
    }
  }
}

// Two choices of the same tokens: the first counts.
TEST(ChoiceScores, OfEqualScoresTheFirst) {
  Trained trained(comm::Communicator::solo("data"));
  data::Question question = draw(1)[0];
  question.choices.resize(1);
  question.choices.push_back(question.choices[0]);
  for (const int64_t answer : {0, 1}) {
    question.answer = answer;
    const auto result = evaluate_choices(*trained.model, {&question, 1}, *trained.communicator, {});
    EXPECT_EQ(result->acc, answer == 0 ? 1 : 0);
    EXPECT_EQ(result->acc_norm, answer == 0 ? 1 : 0);
  }
}

TEST(ChoiceScores, NoFiniteScoreIsNoRightAnswer) {
  Trained trained(comm::Communicator::solo("data"));
  const at::NoGradGuard no_grad;
  trained.model->head().value().fill_(NAN);
  const auto result = evaluate_choices(*trained.model, draw(9), *trained.communicator, {});
  EXPECT_EQ(result->acc, 0);
  EXPECT_EQ(result->acc_norm, 0);
}

TEST(ChoiceScores, TheSameBitsForAnyNumberOfRanks) {
  at::set_num_threads(1);
  const std::vector<data::Question> questions = draw(11);
  const ChoiceOptions options{.micro_batch_size = 3, .wants_to_stop = {}};
  Trained alone(comm::Communicator::solo("data"));
  const auto expected = evaluate_choices(*alone.model, questions, *alone.communicator, options);
  for (const int64_t ranks : {1, 2, 3, 20}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    const auto errors = comm::testing::run_ranks(ranks, [&](const std::shared_ptr<comm::Group>& group) {
      at::set_num_threads(1);
      Trained trained(std::make_shared<comm::Communicator>(group));
      const auto result = evaluate_choices(*trained.model, questions, *trained.communicator, options);
      if (!result) throw std::runtime_error("stopped");
      for (size_t i = 0; i < questions.size(); ++i)
        if (result->questions[i].scores != expected->questions[i].scores)
          throw std::runtime_error(fmt::format("the scores of question {} differ", i));
      if (result->acc != expected->acc || result->acc_norm != expected->acc_norm)
        throw std::runtime_error("the shares differ");
    });
    EXPECT_THAT(errors, testing::Each(""));
  }
}

TEST(ChoiceScores, OneRankStopsAll) {
  const std::vector<data::Question> questions = draw(40);
  const auto errors = comm::testing::run_ranks(3, [&](const std::shared_ptr<comm::Group>& group) {
    at::set_num_threads(1);
    Trained trained(std::make_shared<comm::Communicator>(group));
    int asked = 0;
    const bool mine = trained.communicator->rank() == 1;
    const auto result =
        evaluate_choices(*trained.model, questions, *trained.communicator,
                         {.micro_batch_size = 1, .wants_to_stop = [&] { return ++asked == 2 && mine; }});
    if (result) throw std::runtime_error("went on");
    if (asked != 2) throw std::runtime_error(fmt::format("asked {} times", asked));
  });
  EXPECT_THAT(errors, testing::Each(""));
}

}  // namespace
}  // namespace trireme::train
