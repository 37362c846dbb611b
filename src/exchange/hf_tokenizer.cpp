#include "exchange/hf_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/split.h"

namespace trireme::exchange {
namespace {

using Json = nlohmann::ordered_json;

std::string utf8(uint32_t point) {
  if (point < 0x80) return {static_cast<char>(point)};
  return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
}

// The printable character that stands for each byte: itself, or one from U+0100 on for bytes that do not print
// (openai/gpt-2, src/encoder.py, bytes_to_unicode).
std::array<std::string, 256> byte_characters() {
  std::array<std::string, 256> characters;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    characters[byte] = utf8(prints ? byte : next++);
  }
  return characters;
}

class Spelling {
 public:
  std::string operator()(std::string_view bytes) const {
    std::string text;
    for (const char byte : bytes) text += characters_[static_cast<unsigned char>(byte)];
    return text;
  }

 private:
  std::array<std::string, 256> characters_ = byte_characters();
};

// Every way to make each token of two others. Merges are tried in this order, so the pairs of one token stand together.
Json merges_of(const std::vector<std::string>& ranks, const Spelling& spell) {
  std::unordered_map<std::string_view, size_t> rank_of;
  for (size_t id = 0; id < ranks.size(); ++id)
    if (!ranks[id].empty()) rank_of.emplace(ranks[id], id);
  Json merges = Json::array();
  for (const std::string& token : ranks) {
    std::vector<std::pair<size_t, size_t>> pairs;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = rank_of.find(std::string_view(token).substr(0, cut));
      const auto right = rank_of.find(std::string_view(token).substr(cut));
      if (left != rank_of.end() && right != rank_of.end()) pairs.emplace_back(left->second, right->second);
    }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [left, right] : pairs) merges.push_back({spell(ranks[left]), spell(ranks[right])});
  }
  return merges;
}

}  // namespace

std::string hf_tokenizer(const data::Tokenizer& tokenizer) {
  const data::TokenizerParts& parts = tokenizer.parts();
  const Spelling spell;
  Json vocab = Json::object(), added = Json::array();
  for (size_t id = 0; id < parts.ranks.size(); ++id)
    if (!parts.ranks[id].empty()) vocab[spell(parts.ranks[id])] = id;
  for (const data::SpecialToken& special : parts.specials)
    added.push_back({{"id", special.id},
                     {"content", special.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", data::Splitter(parts.pattern).expression()}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const auto byte_level = [](bool prefix) {
    return Json{{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}, {"use_regex", false}};
  };
  const Json json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false)}}}},
      {"post_processor", nullptr},
      {"decoder", byte_level(true)},
      // ignore_merges: a piece that is a token is that token, whatever its merges would make.
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", true},
        {"vocab", vocab},
        {"merges", merges_of(parts.ranks, spell)}}},
  };
  return json.dump(1) + "\n";
}

std::string hf_tokenizer_config(const data::Tokenizer& tokenizer, int64_t max_seq_len) {
  const std::string& end = tokenizer.parts().end_of_text;
  const Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"model_max_length", max_seq_len},
                     {"bos_token", end},
                     {"eos_token", end},
                     {"clean_up_tokenization_spaces", false}};
  return json.dump(2) + "\n";
}

}  // namespace trireme::exchange
