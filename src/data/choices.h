// Multiple-choice questions: lines of JSON Lines, as the token ids that a model scores.
//
// A line is {"question": text, "choices": [text, ...], "answer": ...}; the answer is an index from 0, a letter from
// "A", or the text of one of the choices. Other fields are ignored, lines of white space are skipped.
//
// How a choice is joined to its question, as lm-evaluation-harness does it (lm_eval/api/model.py, _encode_pair and
// loglikelihood): the context is the question, the continuation a space and the choice. White space at the end of the
// context (Python's str.rstrip) moves to the front of the continuation. The context is encoded by itself, to n tokens;
// the choice's tokens are those after the first n of context + continuation encoded as one text, and follow the n. (A
// token that reaches over the border, as "?\n" may, is lost by that; so it is there, and figures compare.) An empty
// context is one end-of-text token, and then the continuation is encoded by itself. Of what is too long for the model
// the beginning of the context is left out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace trireme::data {

/// A text that is scored after another one.
struct ScoredText {
  std::vector<int32_t> tokens;  ///< context, then continuation
  int64_t scored = 0;           ///< the last so many tokens are the continuation's
};
/// `context` and `continuation` joined as said above, at most `longest` + 1 tokens: the last is predicted and never
/// fed. `scored` may be 0 or more than `longest`, which no model can score.
ScoredText join(const Tokenizer& tokenizer, std::string context, std::string continuation, int64_t longest);

struct Choice {
  ScoredText text;
  int64_t bytes = 0;  ///< of the choice, without the space before it
};

struct Question {
  int64_t line = 0;  ///< in its file, from 1
  std::vector<Choice> choices;
  int64_t answer = 0;  ///< index of the right choice
};

/// The questions of a file, for a model of at most `longest` tokens. Throws one InputError that lists every line that
/// is wrong (at most 20), with what is wrong and what would work.
std::vector<Question> read_choices(const std::filesystem::path& path, const Tokenizer& tokenizer, int64_t longest);
/// The same from text; `name` is what messages call the file.
std::vector<Question> parse_choices(std::string_view text, const std::string& name, const Tokenizer& tokenizer,
                                    int64_t longest);

}  // namespace trireme::data
