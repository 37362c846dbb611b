#include "train/choice_scores.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "memory/purpose.h"
#include "ops/linear_cross_entropy.h"
#include "train/evaluate.h"

namespace trireme::train {

namespace {

using Texts = std::vector<const data::ScoredText*>;

// The last token is predicted and never fed.
int64_t input_size(const data::ScoredText& text) { return static_cast<int64_t>(text.tokens.size()) - 1; }

// The log-probability of each text's last `scored` tokens. Rows are filled up at their right end, which a causal model
// does not look at from the tokens before.
std::vector<double> score(models::Model& model, std::span<const data::ScoredText* const> texts) {
  const auto rows = static_cast<int64_t>(texts.size());
  int64_t seq = 0;
  for (const data::ScoredText* text : texts) seq = std::max(seq, input_size(*text));
  const at::Tensor tokens = at::zeros({rows, seq}, at::kLong);
  std::vector<int64_t> positions, labels;  // of the scored tokens, row by row
  for (int64_t row = 0; row < rows; ++row) {
    const data::ScoredText& text = *texts[static_cast<size_t>(row)];
    const int64_t size = input_size(text);
    std::copy_n(text.tokens.begin(), size, tokens.data_ptr<int64_t>() + row * seq);
    for (int64_t at = size - text.scored; at < size; ++at) {
      positions.push_back(row * seq + at);
      labels.push_back(text.tokens[static_cast<size_t>(at) + 1]);
    }
  }
  const at::Device device = model.head().value().device();
  const at::Tensor hidden = models::forward(model, tokens.to(device));
  // Only what is scored meets the output projection: most of a question does not.
  const at::Tensor scored = hidden.reshape({-1, hidden.size(-1)}).index_select(0, at::tensor(positions).to(device));
  const at::Tensor losses =
      ops::token_losses(scored, model.head().weight().value, at::tensor(labels).to(device), model.shape().logit_softcap)
          .to(at::kCPU, at::kDouble)
          .contiguous();
  std::vector<double> scores;
  const double* loss = losses.data_ptr<double>();
  for (const data::ScoredText* text : texts) {
    scores.push_back(-std::accumulate(loss, loss + text->scored, 0.0));
    loss += text->scored;
  }
  return scores;
}

// The first of the highest; -1 when none is finite.
int64_t best(std::span<const double> scores) {
  int64_t index = -1;
  for (size_t i = 0; i < scores.size(); ++i)
    if (std::isfinite(scores[i]) && (index < 0 || scores[i] > scores[static_cast<size_t>(index)]))
      index = static_cast<int64_t>(i);
  return index;
}

QuestionResult judge(const data::Question& question, std::vector<double> scores) {
  QuestionResult result;
  std::vector<double> by_bytes;
  for (size_t i = 0; i < scores.size(); ++i)
    by_bytes.push_back(scores[i] / static_cast<double>(question.choices[i].bytes));
  result.acc = best(scores) == question.answer;
  result.acc_norm = best(by_bytes) == question.answer;
  result.scores = std::move(scores);
  return result;
}

}  // namespace

std::vector<ChoiceSuite> read_suites(std::span<const config::NamedPath> files, const data::Tokenizer& tokenizer,
                                     int64_t longest, std::vector<std::string>& faults) {
  std::vector<ChoiceSuite> suites;
  for (const config::NamedPath& file : files) {
    try {
      suites.push_back({file.name, file.path, data::read_choices(file.path, tokenizer, longest)});
    } catch (const InputError& error) {
      faults.insert(faults.end(), error.faults().begin(), error.faults().end());
    }
  }
  return suites;
}

std::optional<ChoiceEvaluation> evaluate_choices(models::Model& model, std::span<const data::Question> questions,
                                                 comm::Communicator& data, const ChoiceOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const at::NoGradGuard no_grad;
  const memory::PurposeScope scope(memory::Purpose::activations);
  Texts texts;
  for (const data::Question& question : questions)
    for (const data::Choice& choice : question.choices) texts.push_back(&choice.text);

  // Texts of about one length share a batch, so that little is filled up; the longest come first, so that memory that
  // does not suffice shows at once.
  std::vector<size_t> order(texts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return texts[i]->tokens.size(); });
  const auto count = static_cast<int64_t>(order.size()), size = options.micro_batch_size;
  const int64_t batches = (count + size - 1) / size, rounds = (batches + data.size() - 1) / data.size();

  // Each score is made on one rank, and is 0 on the others: their sum is the score, to the bit.
  const at::Tensor scores = at::zeros({count}, at::kDouble);
  for (int64_t round = 0; round < rounds; ++round) {
    if (options.wants_to_stop && round % kBatchesToStop == 0 && data.any(options.wants_to_stop())) return std::nullopt;
    const int64_t first = (round * data.size() + data.rank()) * size, last = std::min(first + size, count);
    if (first >= last) {
      if (options.collective) score(model, std::span(texts).first(1));
      continue;
    }
    Texts batch;
    for (int64_t i = first; i < last; ++i) batch.push_back(texts[order[static_cast<size_t>(i)]]);
    const std::vector<double> of_batch = score(model, batch);
    for (int64_t i = first; i < last; ++i)
      scores.data_ptr<double>()[order[static_cast<size_t>(i)]] = of_batch[static_cast<size_t>(i - first)];
  }
  data.all_reduce(scores);

  ChoiceEvaluation result;
  const double* next = scores.data_ptr<double>();
  for (const data::Question& question : questions) {
    const size_t choices = question.choices.size();
    result.questions.push_back(judge(question, {next, next + choices}));
    next += choices;
    result.acc += result.questions.back().acc ? 1 : 0;
    result.acc_norm += result.questions.back().acc_norm ? 1 : 0;
  }
  result.acc /= static_cast<double>(questions.size());
  result.acc_norm /= static_cast<double>(questions.size());
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace trireme::train
