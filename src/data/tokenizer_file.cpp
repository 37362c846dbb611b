#include "data/tokenizer_file.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace trireme::data {
namespace {

constexpr const char* kRankFile = "tokenizer.tiktoken";
constexpr const char* kManifest = "manifest.json";
constexpr const char* kFormat = "trireme-tokenizer";
constexpr int kVersion = 1;
constexpr size_t kMostFaults = 20;  // a wrong file must not print a fault for each of its lines

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";  // RFC 4648

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i) group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0);
    for (size_t i = 0; i < 4; ++i) text += i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  size_t count = text.size() / 4 * 3;
  for (int i = 0; i < 2 && text.ends_with('='); ++i, --count) text.remove_suffix(1);
  std::string bytes;
  uint32_t group = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    group = group << 6 | static_cast<uint32_t>(digit);
    if (i % 4 == 0) continue;
    bytes += static_cast<char>(group >> (6 - i % 4 * 2) & 0xFF);
  }
  return bytes.size() == count ? std::optional(bytes) : std::nullopt;
}

std::string rank_file(const std::vector<std::string>& ranks) {
  std::string text;
  for (size_t id = 0; id < ranks.size(); ++id)
    if (!ranks[id].empty()) text += fmt::format("{} {}\n", to_base64(ranks[id]), id);
  return text;
}

/// The faults of one folder, cut off when there are very many.
class Faults {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    if (list_.size() < kMostFaults) list_.push_back(fmt::format(format, std::forward<Args>(args)...));
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  void throw_if_any() {
    if (count_ > list_.size()) list_.push_back(fmt::format("and {} more faults", count_ - list_.size()));
    if (count_ > 0) throw InputError(list_);
  }

 private:
  std::vector<std::string> list_;
  size_t count_ = 0;
};

/// `taken`: ids that specials have among the ranks.
std::vector<std::string> parse_ranks(std::string_view text, const std::string& path,
                                     const std::vector<SpecialToken>& taken, Faults& faults) {
  std::vector<std::optional<std::string>> found;
  std::vector<size_t> line_of;
  size_t line = 0, filled = 0;
  // Ranks are 0..n-1 in a file of n lines, but for specials among them, so one that is far larger must not make a table
  // of its size.
  const auto most = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1 + taken.size();
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line;
    if (content.ends_with('\r')) content.remove_suffix(1);
    if (content.empty()) continue;
    const size_t space = content.find(' ');
    const std::string_view digits = space == std::string_view::npos ? "" : content.substr(space + 1);
    const auto bytes = from_base64(content.substr(0, space));
    if (!bytes) {
      faults.add("{}:{}: `{}` is not base64; a line is `BASE64 RANK`", path, line,
                 content.substr(0, std::min<size_t>(space, 40)));
      continue;
    }
    size_t rank = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (digits.empty() || error != std::errc() || stop != digits.data() + digits.size()) {
      faults.add("{}:{}: `{}` is not a rank; a line is `BASE64 RANK`", path, line, digits.substr(0, 40));
      continue;
    }
    if (rank >= most) {
      faults.add("{}:{}: rank {} leaves a gap: {} lines have the ranks 0 to {}", path, line, rank, most - 1, most - 2);
      continue;
    }
    if (rank >= found.size()) {
      found.resize(rank + 1);
      line_of.resize(rank + 1);
    }
    if (found[rank]) {
      faults.add("{}:{}: rank {} is already that of line {}", path, line, rank, line_of[rank]);
      continue;
    }
    found[rank] = *bytes;
    line_of[rank] = line;
    ++filled;
  }
  if (filled == 0) faults.add("{}: holds no ranks", path);
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    if (!found[rank] && std::ranges::count(taken, static_cast<int64_t>(rank), &SpecialToken::id) == 0)
      faults.add("{}: there is no rank {}, and the ranks go up to {}", path, rank, found.size() - 1);
    ranks.push_back(found[rank].value_or(""));
  }
  return ranks;
}

struct Claims {
  int64_t vocab_size = 0;
  std::string hash;
};

/// Fills all of `parts` but the ranks.
Claims parse_manifest(const std::string& text, const std::string& path, TokenizerParts& parts, Faults& faults) {
  Claims claims;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    faults.add("{}: is not a JSON object", path);
    return claims;
  }
  if (json.value("format", nlohmann::json()) != kFormat) {
    faults.add("{}: is not a tokenizer's manifest: expected \"format\": \"{}\"", path, kFormat);
    return claims;
  }
  if (json.value("version", nlohmann::json()) != kVersion) {
    faults.add("{}: has version {}; this program reads version {}", path,
               json.value("version", nlohmann::json()).dump(), kVersion);
    return claims;
  }
  try {
    parts.pattern = json.at("pattern").get<std::string>();
    parts.end_of_text = json.at("end_of_text").get<std::string>();
    for (const auto& special : json.at("specials")) {
      parts.specials.push_back({special.at("text").get<std::string>(), special.at("id").get<int64_t>()});
    }
    claims.vocab_size = json.at("vocab_size").get<int64_t>();
    claims.hash = json.at("hash").get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    faults.add("{}: {}", path, error.what());
  }
  return claims;
}

}  // namespace

int64_t vocab_size_of(const TokenizerParts& parts) {
  auto size = static_cast<int64_t>(parts.ranks.size());
  for (const SpecialToken& special : parts.specials) size = std::max(size, special.id + 1);
  return size;
}

bool is_tokenizer_manifest(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return false;
  const auto json = nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.value("format", "") == kFormat;
}

std::string tokenizer_hash(const TokenizerParts& parts) {
  Hasher hasher;
  // Each field with its length before it, so that moving a byte from one to the next is seen.
  const auto add = [&](std::string_view field) {
    hasher.add(fmt::format("{}:", field.size()));
    hasher.add(field);
  };
  add(rank_file(parts.ranks));
  add(parts.pattern);
  for (size_t i = 0; i < parts.specials.size(); ++i) {
    const auto& [text, id] = parts.specials[i];
    add(text);
    // 0xFF is in no UTF-8, so this is never the text of a special.
    if (id != static_cast<int64_t>(parts.ranks.size() + i)) add(fmt::format("\xFF{}", id));
  }
  add(parts.end_of_text);
  return hasher.hex();
}

TokenizerParts read_tokenizer(const std::filesystem::path& folder) {
  Faults faults;
  std::array<std::string, 2> content;
  for (const auto& [name, text] : {std::pair{kManifest, &content[0]}, std::pair{kRankFile, &content[1]}}) {
    const std::filesystem::path path = folder / name;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      faults.add(
          "{} is missing. A run's tokenizer comes back with the same `trireme train`, a data set's with `trireme data "
          "prepare --force`; `trireme data tokenizer TEXT... --out FOLDER` makes a new one",
          path.string());
      continue;
    }
    try {
      *text = read_file(path);
    } catch (const InputError& error) {
      faults.add("{}", error.what());
    }
  }
  faults.throw_if_any();

  TokenizerParts parts;
  const std::string manifest = (folder / kManifest).string(), ranks = (folder / kRankFile).string();
  const Claims claims = parse_manifest(content[0], manifest, parts, faults);
  const bool manifest_fits = faults.empty();
  parts.ranks = parse_ranks(content[1], ranks, parts.specials, faults);
  if (manifest_fits && faults.empty()) {
    const int64_t size = vocab_size_of(parts);
    if (claims.vocab_size != size) {
      faults.add("{}: vocab_size is {}, but {} ranks and {} specials need {}", manifest, claims.vocab_size,
                 parts.ranks.size(), parts.specials.size(), size);
    }
    const std::string hash = tokenizer_hash(parts);
    if (claims.hash != hash) {
      faults.add("{}: hash is {}, but the files give {}: one of them was changed, or comes from another tokenizer",
                 manifest, claims.hash, hash);
    }
  }
  faults.throw_if_any();
  return parts;
}

void write_tokenizer(const std::filesystem::path& folder, const TokenizerParts& parts) {
  nlohmann::ordered_json json{{"format", kFormat}, {"version", kVersion}, {"pattern", parts.pattern}};
  json["vocab_size"] = vocab_size_of(parts);
  json["specials"] = nlohmann::ordered_json::array();
  for (const auto& [text, id] : parts.specials) json["specials"].push_back({{"text", text}, {"id", id}});
  json["end_of_text"] = parts.end_of_text;
  json["hash"] = tokenizer_hash(parts);
  make_directories(folder);
  write_file_durably(folder / kRankFile, rank_file(parts.ranks));
  write_file_durably(folder / kManifest, json.dump(2) + "\n");
}

namespace {

/// A published encoding (openai/tiktoken, tiktoken_ext/openai_public.py).
struct Encoding {
  const char* name;
  const char* pattern;
  std::vector<SpecialToken> specials;  ///< <|endoftext|> first
  const char* hash;                    ///< XXH3-128 of the rank file
};

const std::vector<Encoding>& encodings() {
  static const std::vector<Encoding> all = {
      {"r50k_base", "gpt2", {{"<|endoftext|>", 50256}}, "aa5ef69a716d8a563cb2fbe95939bd2d"},
      {"p50k_base", "gpt2", {{"<|endoftext|>", 50256}}, "1bfe2eadd49e9688f2d3fa62565e6e17"},
      {"cl100k_base",
       "cl100k",
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}},
       "7cdb781bb5d59657aa5d7bf38900641a"},
      {"o200k_base",
       "o200k",
       {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}},
       "dee5d4ced09a2db672a095e82ca109d6"},
  };
  return all;
}

TokenizerParts with_ranks(std::string_view content, const std::filesystem::path& path, const std::string& pattern,
                          std::vector<SpecialToken> specials) {
  Faults faults;
  TokenizerParts parts{pattern, {}, std::move(specials), ""};
  if (!parts.specials.empty()) parts.end_of_text = parts.specials.front().text;
  parts.ranks = parse_ranks(content, path.string(), parts.specials, faults);
  faults.throw_if_any();
  return parts;
}

}  // namespace

TokenizerParts read_encoding(const std::filesystem::path& path) {
  const std::string content = read_file(path);
  Hasher hasher;
  hasher.add(content);
  const std::string hash = hasher.hex();
  std::string names;
  for (const Encoding& encoding : encodings()) {
    if (encoding.hash == hash) return with_ranks(content, path, encoding.pattern, encoding.specials);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", encoding.name);
  }
  throw_input(
      "{} is the rank file of none of {}; `trireme data import-tokenizer {} --pattern PATTERN --special TEXT --out "
      "FOLDER` makes a tokenizer of any rank file",
      path.string(), names, path.string());
}

TokenizerParts read_rank_file(const std::filesystem::path& path, const std::string& pattern,
                              std::vector<SpecialToken> specials) {
  return with_ranks(read_file(path), path, pattern, std::move(specials));
}

}  // namespace trireme::data
