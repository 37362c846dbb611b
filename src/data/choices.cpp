#include "data/choices.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/input_text.h"
#include "data/prepare_text.h"

namespace trireme::data {
namespace {

using nlohmann::json;

constexpr size_t kMostFaults = 20;
constexpr std::string_view kSpace = " ";  // between a question and a choice

// What Python's str.isspace holds for white space, as UTF-8.
constexpr std::array<std::string_view, 29> kWhiteSpace = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

size_t size_without_trailing_white_space(std::string_view text) {
  while (true) {
    const auto* space = std::ranges::find_if(kWhiteSpace, [&](std::string_view s) { return text.ends_with(s); });
    if (space == kWhiteSpace.end()) return text.size();
    text.remove_suffix(space->size());
  }
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

// Faults are thrown with what is wrong in a line; the reader of the file adds where.
[[noreturn]] void refuse(const std::string& fault) { throw InputError(fault); }

std::string last_letter(size_t choices) {
  return std::string(1, static_cast<char>('A' + std::min(choices, size_t{26}) - 1));
}

int64_t answer_of(const json& answer, const std::vector<std::string>& choices) {
  const auto count = static_cast<int64_t>(choices.size());
  if (answer.is_number_integer()) {
    // What does not fit int64 is out of range too.
    const bool inside = answer >= 0 && answer < count;
    if (!inside) refuse(fmt::format("answer = {}, but the {} choices are 0 to {}", answer.dump(), count, count - 1));
    return answer.get<int64_t>();
  }
  if (!answer.is_string())
    refuse(fmt::format("answer = {}: expected an index from 0, a letter from \"A\", or the text of a choice",
                       answer.dump()));
  const std::string& text = answer.get_ref<const std::string&>();
  const bool is_letter = text.size() == 1 && text[0] >= 'A' && text[0] <= last_letter(choices.size())[0];
  const auto first = std::ranges::find(choices, text);
  if (!is_letter && first == choices.end())
    refuse(fmt::format("answer = {} is neither a letter from \"A\" to \"{}\" nor the text of a choice", answer.dump(),
                       last_letter(choices.size())));
  if (first == choices.end()) return text[0] - 'A';
  const int64_t index = first - choices.begin();
  if (std::ranges::count(choices, text) > 1)
    refuse(fmt::format("answer = {} is the text of several choices; give the index, from 0", answer.dump()));
  if (is_letter && text[0] - 'A' != index)
    refuse(fmt::format("answer = {} is the letter of choice {} and the text of choice {}; give the index, from 0",
                       answer.dump(), text[0] - 'A', index));
  return index;
}

std::vector<std::string> choices_of(const json& choices) {
  std::vector<std::string> texts;
  const bool fits = choices.is_array() && choices.size() >= 2 &&
                    std::ranges::all_of(choices, [](const json& choice) { return choice.is_string(); });
  if (!fits) refuse("choices has to be a list of at least two texts");
  for (const json& choice : choices) {
    texts.push_back(choice.get<std::string>());
    if (texts.back().empty()) refuse(fmt::format("choice {} is empty", texts.size() - 1));
  }
  return texts;
}

Question question_of(std::string_view line, const Tokenizer& tokenizer, int64_t longest) {
  if (const size_t at = find_invalid_utf8(line); at != std::string_view::npos)
    refuse(fmt::format("byte {} of the line is not UTF-8; JSON is", at + 1));
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object())
    refuse(R"(this is no JSON object; expected {"question": "...", "choices": ["...", "..."], "answer": 0})");
  for (const char* key : {"question", "choices", "answer"})
    if (!object.contains(key)) refuse(fmt::format("{} is missing", key));
  if (!object["question"].is_string()) refuse("question has to be a text");
  const std::string& context = object["question"].get_ref<const std::string&>();
  const std::vector<std::string> choices = choices_of(object["choices"]);
  Question question;
  question.answer = answer_of(object["answer"], choices);
  for (size_t i = 0; i < choices.size(); ++i) {
    Choice choice;
    choice.text = join(tokenizer, context, std::string(kSpace) + choices[i], longest);
    choice.bytes = static_cast<int64_t>(choices[i].size());
    if (choice.text.scored == 0)
      refuse(fmt::format("choice {} has no token of its own: the tokenizer joins it to the question", i));
    if (choice.text.scored > longest)
      refuse(fmt::format("choice {} has {} tokens, and the model's longest sequence is {}; a shorter one works", i,
                         choice.text.scored, longest));
    question.choices.push_back(std::move(choice));
  }
  return question;
}

}  // namespace

ScoredText join(const Tokenizer& tokenizer, std::string context, std::string continuation, int64_t longest) {
  const size_t kept = size_without_trailing_white_space(context);
  continuation = context.substr(kept) + continuation;
  context.resize(kept);
  ScoredText text;
  std::vector<int32_t> scored;
  if (context.empty()) {
    text.tokens = {tokenizer.end_of_text()};
    scored = encoded(tokenizer, continuation);
  } else {
    text.tokens = encoded(tokenizer, context);
    scored = encoded(tokenizer, context + continuation);
    scored.erase(scored.begin(), scored.begin() + std::min(std::ssize(scored), std::ssize(text.tokens)));
  }
  text.scored = std::ssize(scored);
  text.tokens.insert(text.tokens.end(), scored.begin(), scored.end());
  const int64_t size = std::ssize(text.tokens);
  if (size > longest + 1) text.tokens.erase(text.tokens.begin(), text.tokens.end() - (longest + 1));
  return text;
}

std::vector<Question> parse_choices(std::string_view text, const std::string& name, const Tokenizer& tokenizer,
                                    int64_t longest) {
  std::vector<Question> questions;
  std::vector<std::string> faults;
  size_t wrong = 0;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      questions.push_back(question_of(line, tokenizer, longest));
      questions.back().line = number;
    } catch (const InputError& error) {
      if (++wrong <= kMostFaults) faults.push_back(fmt::format("{}:{}: {}", name, number, error.what()));
    }
  }
  if (wrong > kMostFaults)
    faults.push_back(fmt::format("{} more line{} of {} {} wrong", wrong - kMostFaults,
                                 wrong == kMostFaults + 1 ? "" : "s", name, wrong == kMostFaults + 1 ? "is" : "are"));
  if (!faults.empty()) throw InputError(faults);
  if (questions.empty()) throw_input("{} has no question; expected a JSON object a line", name);
  return questions;
}

std::vector<Question> read_choices(const std::filesystem::path& path, const Tokenizer& tokenizer, int64_t longest) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored))
    throw_input("{} is no file, and what is none may have no end; name a file of questions", path.string());
  if (is_packed(path)) throw_input("{} is packed; unpack it, a file of questions is read as it is", path.string());
  return parse_choices(read_file(path), path.string(), tokenizer, longest);
}

}  // namespace trireme::data
