// Multiple-choice questions: which choice a model holds most likely.
//
// The score of a choice is the sum of the log-probabilities of its tokens after the question's. `acc`: the share of
// questions whose right choice has the highest score. `acc_norm`: the same for score / bytes of the choice. Of equal
// scores the first counts; a score that is not finite is never the highest.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/named_path.h"
#include "data/choices.h"
#include "models/model.h"

namespace trireme::train {

/// A file of questions that a run is measured by.
struct ChoiceSuite {
  std::string name;
  std::filesystem::path path;
  std::vector<data::Question> questions;
};

/// All files, for a model of at most `longest` tokens; what is wrong with any is added to `faults`.
std::vector<ChoiceSuite> read_suites(std::span<const config::NamedPath> files, const data::Tokenizer& tokenizer,
                                     int64_t longest, std::vector<std::string>& faults);

struct QuestionResult {
  std::vector<double> scores;  ///< of each choice, in nats
  bool acc = false, acc_norm = false;
};

struct ChoiceEvaluation {
  double acc = 0, acc_norm = 0;
  std::vector<QuestionResult> questions;
  double seconds = 0;
};

struct ChoiceOptions {
  int64_t micro_batch_size = 1;         ///< choices that are scored at once
  bool collective = false;              ///< forward passes are: ranks without questions make them too
  std::function<bool()> wants_to_stop;  ///< asked now and then; one rank's wish is everybody's. None: never
};

/// Collective over `data`, whose ranks share the batches; what is in a batch does not depend on their number, and
/// neither does a score. Every rank gets the whole result. Nothing when a rank wanted to stop before the end.
std::optional<ChoiceEvaluation> evaluate_choices(models::Model& model, std::span<const data::Question> questions,
                                                 comm::Communicator& data, const ChoiceOptions& options);

}  // namespace trireme::train
